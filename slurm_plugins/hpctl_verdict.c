/*
 * hpctl_verdict: print the agent's verdict on this node, in a few milliseconds and without a fork.
 *
 *     hpctl_verdict [--exit-code] [--socket PATH]
 *
 * slurmd runs it through health_check.sh as HealthCheckProgram. It asks the running agent over its
 * socket, prints one line and changes nothing: the daemon on the head node decides about drains.
 *
 * The exit code is 0. With --exit-code it is that of NVIDIA Health Validation
 * (docs.nvidia.com/health-validation/getting-started/faq): 0 for PASS, INFO and WARNING, 1 for
 * CRITICAL and UNKNOWN, 2 where there is no verdict. After TIMEOUT_S there is none.
 *
 * docs/adr/0110: why this is C. It needs no header of Slurm.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define DEFAULT_SOCKET "/run/hpctl/agent.sock" /* hpctl.detection.outside.ask.SOCKET */
#define REQUEST "{\"op\":\"line\"}\n"
#define HEAD "hpctl.line/1 " /* hpctl.detection.outside.node_verdict.LINE */
#define LONGEST 1024
#define TIMEOUT_S 2
#define NO_VERDICT 2

static int counts; /* whether the exit code tells the verdict */

static void print_timeout(int signal)
{
	static const char text[] = "hpctl: no verdict: the agent did not answer within 2 s\n";

	(void)signal;
	if (write(STDOUT_FILENO, text, sizeof(text) - 1) < 0)
		_exit(NO_VERDICT);
	_exit(counts ? NO_VERDICT : 0);
}

/* Bound the whole program: a connect to a full queue, a write and a read can each block. */
static void start_timeout(void)
{
	struct sigaction action = { .sa_handler = print_timeout };
	sigset_t set;

	sigaction(SIGALRM, &action, NULL);
	sigemptyset(&set);
	sigaddset(&set, SIGALRM);
	sigprocmask(SIG_UNBLOCK, &set, NULL);
	alarm(TIMEOUT_S);
}

static int fail(const char *why, const char *path)
{
	printf("hpctl: no verdict: %s at %s\n", why, path);
	return counts ? NO_VERDICT : 0;
}

/* The agent runs as root, or, in a test, as the caller. Any other user could answer what it likes. */
static int is_trusted(int link)
{
	struct ucred peer;
	socklen_t size = sizeof(peer);

	if (getsockopt(link, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
		return 0;
	return peer.uid == 0 || peer.uid == geteuid();
}

/* Read up to the first newline, and make it one line of printable ASCII. 0 where there is none. */
static int read_line(int link, char *line)
{
	size_t length = 0;
	char *end = NULL;

	while (length < LONGEST && end == NULL) {
		ssize_t got = recv(link, line + length, LONGEST - length, 0);

		if (got <= 0)
			return 0;
		end = memchr(line + length, '\n', (size_t)got);
		length += (size_t)got;
	}
	if (end == NULL)
		return 0;
	*end = '\0';
	if (strlen(line) != (size_t)(end - line))
		return 0;
	for (char *at = line; *at; at++)
		if (*at < ' ' || *at > '~')
			*at = '?';
	return 1;
}

/* The exit code of a severity; -1 for a word that is none. */
static int find_code(const char *word)
{
	static const char *const words[] = { "PASS", "INFO", "WARNING", "CRITICAL", "UNKNOWN" };

	for (int at = 0; at < 5; at++)
		if (strcmp(word, words[at]) == 0)
			return at >= 3;
	return -1;
}

/* What slurmctld thinks (slurm.conf(5), SLURM_NODE_IS_HEALTHY), where it differs from the agent. */
static const char *compare_with_slurm(const char *severity)
{
	const char *healthy = getenv("SLURM_NODE_IS_HEALTHY");

	if (healthy == NULL)
		return "";
	if (strcmp(healthy, "no") == 0 && find_code(severity) == 0)
		return "; Slurm has the node as unhealthy";
	if (strcmp(healthy, "yes") == 0 && strcmp(severity, "CRITICAL") == 0)
		return "; Slurm has the node as healthy still";
	return "";
}

static int print_verdict(char *line, const char *path)
{
	char *severity = line + strlen(HEAD), *text;
	int code = -1;

	if (strncmp(line, HEAD, strlen(HEAD)) == 0 && (text = strchr(severity, ' ')) != NULL) {
		*text++ = '\0';
		code = find_code(severity);
	}
	if (code < 0)
		return fail("what answers is no agent of this release", path);
	printf("%s: %s%s\n", severity, text, compare_with_slurm(severity));
	return counts ? code : 0;
}

int main(int argc, char **argv)
{
	const char *path = getenv("HPCTL_AGENT_SOCKET");
	struct sockaddr_un place = { .sun_family = AF_UNIX };
	char line[LONGEST];
	int link;

	if (path == NULL || *path == '\0')
		path = DEFAULT_SOCKET;
	for (int at = 1; at < argc; at++) {
		if (strcmp(argv[at], "--exit-code") == 0) {
			counts = 1;
		} else if (strcmp(argv[at], "--socket") == 0 && at + 1 < argc) {
			path = argv[++at];
		} else {
			fprintf(stderr, "usage: hpctl_verdict [--exit-code] [--socket PATH]\n");
			return NO_VERDICT;
		}
	}
	start_timeout();
	if (strlen(path) >= sizeof(place.sun_path))
		return fail("the name is too long", path);
	strcpy(place.sun_path, path);
	link = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (link < 0 || connect(link, (struct sockaddr *)&place, sizeof(place)) != 0)
		return fail(strerror(errno), path);
	if (!is_trusted(link))
		return fail("another user's program serves the socket", path);
	if (send(link, REQUEST, strlen(REQUEST), MSG_NOSIGNAL) < 0 && errno != EPIPE)
		return fail(strerror(errno), path);
	if (!read_line(link, line))
		return fail("what answers is no agent", path);
	return print_verdict(line, path);
}
