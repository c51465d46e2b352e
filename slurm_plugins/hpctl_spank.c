/*
 * hpctl_spank: `sbatch --resilient[=POLICY]` and `srun --resilient[=POLICY]`.
 *
 * In plugstack.conf:  optional /path/hpctl_spank.so python=/opt/hpctl/bin/python [timeout=10]
 *
 * Does nothing until a user gives the option. Then it asks hpctl, once and for at most `timeout`
 * seconds, which command does the same resiliently (python ... hpctl.jobs.spank, which says what it
 * would do and does nothing), and runs that command instead of this one. Whatever goes wrong up to
 * there, hpctl missing, broken, slow or of another mind, is reported on stderr, and this sbatch or srun
 * continues as if the option had not been given.
 *
 * On compute nodes, with Slurm below 24.05, it turns Nagle's algorithm off in what slurmstepd sends to
 * srun, as Slurm itself does from 24.05 on. With it, the kernel holds a failing task's last lines for
 * 40 ms, until srun's kernel has acknowledged what was sent before. srun --kill-on-bad-exit drops what
 * is not there when the other tasks have been killed, which takes 30 ms.
 *
 * docs/jobs.md, docs/adr/0024.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <slurm/slurm_version.h>
#include <slurm/spank.h>

/* hpctl.toolkit.compat.SAFE_PATH: -P, which Python 3.10 lacks. */
#define SAFE_PATH                                                                                  \
	"import sys; sys.path = [p for p in sys.path if p]; import runpy;"                             \
	" runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"

SPANK_PLUGIN(hpctl, 1);

extern char **environ;

#define OPTION "resilient"
#define SHORTEST 4 /* --res would be ambiguous with --reservation, --resi is not */
#define LARGEST (4 * 1024 * 1024) /* of a command line; the kernel's own limit is below */
#define GUARD "HPCTL_SPANK_PARENT"
#define ANSWER ".hpctl-command"

static const char *python = "/opt/hpctl/bin/python";
static int timeout_s = 10;
static int asked, handled, started_by_us;
static char policy[PATH_MAX];

/* Where Slurm keeps the option for the processes of a job. They are other commands, and their
 * users have not asked. The second is the first as sbatch hands it to the job. */
static const char *const inherited[] = {
	"_SLURM_SPANK_OPTION_hpctl_" OPTION,
	"SLURM_SPANK__SLURM_SPANK_OPTION_hpctl_" OPTION,
};

static int on_option(int val, const char *optarg, int remote)
{
	(void)val;
	if (remote)
		return 0;
	asked = 1;
	policy[0] = '\0';
	if (optarg)
		snprintf(policy, sizeof(policy), "%s", optarg);
	return 0;
}

static struct spank_option option = {
	OPTION, "policy",
	"hpctl: bring the job back after faults, crashes and hangs [by this policy]",
	2 /* an optional argument */, 0, on_option,
};

static void forget_option(void)
{
	for (size_t i = 0; i < sizeof(inherited) / sizeof(inherited[0]); i++)
		unsetenv(inherited[i]);
}

static void plainly(const char *why)
{
	slurm_info("hpctl: --" OPTION ": %s: going on without it", why);
}

/* A whole file, which ends with a NUL; NULL for any other. */
static char *text_of(const char *path, size_t *size)
{
	size_t room = 65536;
	char *text = malloc(room), *more;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t got = -1;

	*size = 0;
	while (fd >= 0 && text) {
		got = read(fd, text + *size, room - *size);
		if (got == 0 || (got < 0 && errno != EINTR))
			break;
		*size += got > 0 ? (size_t)got : 0;
		if (*size < room)
			continue;
		more = room < LARGEST ? realloc(text, room *= 2) : NULL;
		if (!more) {
			got = -1;
			break;
		}
		text = more;
	}
	if (fd >= 0)
		close(fd);
	if (text && got == 0 && *size && text[*size - 1] == '\0')
		return text;
	free(text);
	return NULL;
}

/* A file of NUL-terminated strings as a NULL-terminated vector, or NULL. */
static char **args_of(const char *path, int *count)
{
	size_t size = 0, n = 0;
	char *text = text_of(path, &size), **args;

	*count = 0;
	if (!text)
		return NULL;
	for (size_t at = 0; at < size; at++)
		n += text[at] == '\0';
	args = calloc(n + 1, sizeof(*args));
	if (!args) {
		free(text);
		return NULL;
	}
	for (size_t at = 0; at < size; at += strlen(text + at) + 1)
		args[(*count)++] = text + at;
	return args;
}

/* Whether a word is our option as getopt_long understands it, abbreviations included. */
static int is_ours(const char *word)
{
	size_t typed;

	if (strncmp(word, "--", 2))
		return 0;
	typed = strcspn(word + 2, "=");
	return typed >= SHORTEST && !strncmp(word + 2, OPTION, typed) && typed <= strlen(OPTION);
}

/* A private directory for hpctl's answer; 0 for success, else errno says why not. */
static int directory_made(char *path, size_t room)
{
	const char *tmp = getenv("TMPDIR");

	snprintf(path, room, "%s/hpctl-spank-XXXXXX", tmp && *tmp == '/' ? tmp : "/tmp");
	return mkdtemp(path) ? 0 : -1;
}

static void directory_removed(const char *path)
{
	DIR *directory = opendir(path);
	struct dirent *entry;

	while (directory && (entry = readdir(directory)))
		unlinkat(dirfd(directory), entry->d_name, 0); /* . and .. stay, as they must */
	if (directory)
		closedir(directory);
	rmdir(path);
}

/* Run a command in a separate process group and wait for at most timeout_s; 0 if it exited with
 * 0. A process that cannot even be killed, in a dead file system, is left behind. */
static int ran_well(char **command)
{
	const struct timespec pause = { 0, 5 * 1000 * 1000 };
	struct timespec now, end;
	sigset_t blocked;
	posix_spawn_file_actions_t files;
	posix_spawnattr_t attributes;
	int status = -1, failed;
	pid_t pid = -1, done;

	posix_spawn_file_actions_init(&files);
	posix_spawn_file_actions_adddup2(&files, STDERR_FILENO, STDOUT_FILENO);
	posix_spawnattr_init(&attributes);
	posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
	/* srun blocks most signals by now. Of a terminal under `stty tostop` we are the background. */
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGTTOU);
	posix_spawnattr_setsigmask(&attributes, &blocked);
	failed = posix_spawn(&pid, command[0], &files, &attributes, command, environ);
	posix_spawn_file_actions_destroy(&files);
	posix_spawnattr_destroy(&attributes);
	if (failed) {
		slurm_info("hpctl: cannot run %s: %s", command[0], strerror(failed));
		return -1;
	}
	clock_gettime(CLOCK_MONOTONIC, &end);
	end.tv_sec += timeout_s;
	for (;;) {
		done = waitpid(pid, &status, WNOHANG);
		if (done == pid || (done < 0 && errno != EINTR))
			break;
		clock_gettime(CLOCK_MONOTONIC, &now);
		if (now.tv_sec > end.tv_sec || (now.tv_sec == end.tv_sec && now.tv_nsec >= end.tv_nsec)) {
			slurm_info("hpctl: no answer within %d s", timeout_s);
			kill(-pid, SIGKILL);
			nanosleep(&pause, NULL);
			waitpid(pid, &status, WNOHANG);
			return -1;
		}
		nanosleep(&pause, NULL);
	}
	return done == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -1;
}

/* What hpctl would run instead of args[0..count): NULL where it has no answer. `rest` is where
 * the options end. Leaves files in `directory` that the answer may name. */
static char **instead(const char *kind, const char *directory, char **args, int count, int rest)
{
	char path[PATH_MAX + 16];
	char **ask = calloc((size_t)count + 10, sizeof(*ask));
	int n = 0;

	if (!ask)
		return NULL;
	ask[n++] = (char *)python;
	ask[n++] = (char *)"-c";
	ask[n++] = (char *)SAFE_PATH;
	ask[n++] = (char *)"hpctl.jobs.spank";
	ask[n++] = (char *)kind;
	ask[n++] = (char *)directory;
	ask[n++] = policy;
	for (int i = 1; i < count; i++)
		if (i >= rest || !is_ours(args[i]))
			ask[n++] = args[i];
	if (ran_well(ask))
		return NULL;
	snprintf(path, sizeof(path), "%s/" ANSWER, directory);
	return args_of(path, &n);
}

/* Run sbatch again in a child, whose exit code becomes ours; returns only where it cannot start. */
static void submit(const char *directory, char **command)
{
	char guard[32], program[PATH_MAX];
	posix_spawnattr_t attributes;
	sigset_t defaults;
	ssize_t length = readlink("/proc/self/exe", program, sizeof(program) - 1);
	int status = 0, failed;
	pid_t pid;

	if (length <= 0)
		return;
	program[length] = '\0';
	snprintf(guard, sizeof(guard), "%ld", (long)getpid());
	if (setenv(GUARD, guard, 1))
		return;
	sigemptyset(&defaults);
	sigaddset(&defaults, SIGINT);
	sigaddset(&defaults, SIGQUIT);
	posix_spawnattr_init(&attributes);
	posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
	posix_spawnattr_setsigdefault(&attributes, &defaults);
	failed = posix_spawn(&pid, program, NULL, &attributes, command, environ);
	posix_spawnattr_destroy(&attributes);
	unsetenv(GUARD);
	if (failed) {
		slurm_info("hpctl: cannot run %s: %s", program, strerror(failed));
		return;
	}
	signal(SIGINT, SIG_IGN); /* as system(3): the terminal signals the child itself */
	signal(SIGQUIT, SIG_IGN);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	directory_removed(directory);
	_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

/* Why this command is better left as it is, or NULL. */
static const char *unfit(const char *kind, char **args, int count, int rest)
{
	const int step = !strcmp(kind, "srun");
	int wrapped = 0;

	for (int i = 1; i < count; i++) {
		/* srun -N1 a : -N1 b; but sbatch's script may have an argument like that */
		if ((step || i <= rest) && !strcmp(args[i], ":"))
			return "not for heterogeneous jobs and steps";
		if (i < rest && !strncmp(args[i], "--auto-resume", 13))
			return "HyperPod's --auto-resume is asked for as well, which does it its own way";
		wrapped |= i < rest && !strncmp(args[i], "--wrap", 6);
	}
	if (step) {
		if (!getenv("SLURM_JOB_ID"))
			return "outside a job there is no allocation to stay in; use sbatch --" OPTION;
		return rest < count ? NULL : "there is no command";
	}
	/* sbatch has read a script on stdin by now; hpctl must be able to read it again. */
	if (rest >= count && !wrapped && lseek(STDIN_FILENO, 0, SEEK_SET) != 0)
		return "a script that comes through a pipe cannot be read twice; give a file";
	return NULL;
}

static void handle(const char *kind)
{
	char directory[PATH_MAX];
	const char *why;
	int count = 0, rest = optind; /* getopt_long has just read this command line */
	char **args = args_of("/proc/self/cmdline", &count), **command;
	struct sigaction reap = { .sa_handler = SIG_DFL }, before;
	sigset_t none, blocked;

	if (!args || rest < 1 || rest > count) {
		plainly("cannot read the command line");
		return;
	}
	if ((why = unfit(kind, args, count, rest))) {
		plainly(why);
		return;
	}
	if (directory_made(directory, sizeof(directory))) {
		slurm_info("hpctl: cannot make %s: %s", directory, strerror(errno));
		plainly("no directory for temporary files");
		return;
	}
	sigaction(SIGCHLD, &reap, &before); /* ignored, it would hide how our children ended */
	command = instead(kind, directory, args, count, rest);
	if (command && command[0] && !strcmp(kind, "sbatch")) {
		submit(directory, command);
	} else if (command && command[0]) {
		directory_removed(directory);
		sigemptyset(&none); /* what srun has blocked would stay so, SIGTERM among it */
		sigprocmask(SIG_SETMASK, &none, &blocked);
		execv(command[0], command);
		sigprocmask(SIG_SETMASK, &blocked, NULL);
		slurm_info("hpctl: cannot run %s: %s", command[0], strerror(errno));
	}
	sigaction(SIGCHLD, &before, NULL);
	directory_removed(directory);
	plainly("hpctl did not take it over");
}

int slurm_spank_init(spank_t spank, int argc, char **argv)
{
	const spank_context_t context = spank_context();
	const char *guard = getenv(GUARD);

	for (int i = 0; i < argc; i++) {
		if (!strncmp(argv[i], "python=", 7))
			python = strdup(argv[i] + 7);
		else if (!strncmp(argv[i], "timeout=", 8) && atoi(argv[i] + 8) > 0)
			timeout_s = atoi(argv[i] + 8);
		else
			slurm_info("hpctl: plugstack.conf: ignoring %s", argv[i]);
	}
	if (!python)
		python = "";
	if (context == S_CTX_LOCAL || context == S_CTX_ALLOCATOR) {
		forget_option();
		/* Is this the sbatch that submit() started? Its script may say the option again. */
		started_by_us = guard && atol(guard) == (long)getppid();
		unsetenv(GUARD); /* else the job would have it */
	}
	/* Everywhere, or slurmstepd would wonder about it. Another plugin may have the name. */
	if (spank_option_register(spank, &option) != ESPANK_SUCCESS)
		slurm_debug("hpctl: --" OPTION " is not available");
	return 0;
}

int slurm_spank_init_post_opt(spank_t spank, int argc, char **argv)
{
	const spank_context_t context = spank_context();

	(void)spank, (void)argc, (void)argv;
	if ((context != S_CTX_LOCAL && context != S_CTX_ALLOCATOR) || !asked || handled)
		return 0;
	handled = 1; /* called once for each component of a heterogeneous job */
	forget_option();
	if (started_by_us)
		return 0;
	if (context == S_CTX_LOCAL)
		handle("srun");
	else if (!strcmp(program_invocation_short_name, "sbatch"))
		handle("sbatch");
	else
		plainly("it is for sbatch and srun");
	return 0;
}

#if SLURM_VERSION_NUMBER < SLURM_VERSION_NUM(24, 5, 0)
static void send_at_once(int fd)
{
	int domain = 0, type = 0, on = 1;
	socklen_t size = sizeof(domain);

	if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) ||
	    (domain != AF_INET && domain != AF_INET6))
		return;
	size = sizeof(type);
	if (!getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) && type == SOCK_STREAM)
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

/* In slurmstepd, once its connections to srun are there. */
int slurm_spank_task_post_fork(spank_t spank, int argc, char **argv)
{
	static int done;
	DIR *directory = done ? NULL : opendir("/proc/self/fd");
	struct dirent *entry;

	(void)spank, (void)argc, (void)argv;
	done = 1; /* for all tasks of the step on this node */
	while (directory && (entry = readdir(directory)))
		if (*entry->d_name != '.')
			send_at_once(atoi(entry->d_name));
	if (directory)
		closedir(directory);
	return 0;
}
#endif
