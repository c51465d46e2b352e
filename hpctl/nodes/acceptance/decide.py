"""The test of a node before it serves again, as phases of its recovery. Pure."""

from hpctl.engine.node_history import (
    has_evidence_newer_than_recovery,
    has_passed_latest_node_test,
    list_steps_since_drain,
)
from hpctl.engine.test_reservation import (
    choose_acceptance_test_level,
    find_acceptance_test_job_id,
    format_acceptance_test_name,
)
from hpctl.faults.slurm_reasons import is_node_drained_by_slurm
from hpctl.nodes.acceptance.limits import FAILED_SIGNALS, FIGURES_SHOWN, PATIENCE_S, REMEDY_SIGNALS
from hpctl.nodes.actors import NodeCase, attempt_node_step, resolve_step_answer
from hpctl.toolkit.bounds import add_seconds_within_bounds, make_printable
from hpctl.vocabulary.assessment import NodeCondition
from hpctl.vocabulary.model import TEST, TEST_SUMMARY, DeviceVerdict, Finding
from hpctl.vocabulary.node_recovery import NodeRecovery, NodeRecoverySignal
from hpctl.vocabulary.node_test import COMMENT_OF_TEST
from hpctl.vocabulary.outcome import OutcomeKind
from hpctl.vocabulary.recovery import (
    Next,
    RecheckInterval,
    RecoveryPhaseMove,
    StepKind,
    StepStartDecision,
    describe_node_takeover,
    find_last_step_attempt,
    format_call_outcome,
)
from hpctl.vocabulary.slurm_facts import ENDED


def choose_step_before_return_to_service(c: NodeCase) -> Next | None:
    """Return what a healthy node still needs before it serves: a test, or to leave an old one."""
    if c.facts.left_in:
        return delete_leftover_reservation(c)
    level = choose_acceptance_test_level(c.rec, c.policy)
    if level:
        return RecoveryPhaseMove(
            NodeRecoverySignal.ACCEPTANCE_DUE, f"its {level} test comes before it serves"
        )
    return None


def advance_acceptance_test(c: NodeCase) -> Next:
    """Reserve the node, resume it inside, submit the job, wait for the result."""
    ended = (
        _detect_node_failure_during_test(c)
        or _detect_failed_tests(c)
        or _detect_operator_takeover(c)
        or _evaluate_agent_test_results(c)
        or _evaluate_missing_test_result(c)
    )
    if ended is not None:
        return ended
    node, name, opened = (
        c.facts.slurm,
        format_acceptance_test_name(c.rec),
        _has_step_since_drain(c.rec, StepKind.RESUME),
    )
    if node is None:
        return c.wait("slurmctld does not list the node", RecheckInterval.SLOWLY)
    if not c.facts.held:
        cannot = "it cannot be reserved for its test"
        return c.take(
            StepKind.ISOLATE, name, NodeRecoverySignal.UNTESTED, cannot, nodes=(node.name,)
        )
    if not node.in_service:
        answer = c.attempt(StepKind.RESUME, c.rec.node)
        last = c.last(StepKind.RESUME)
        if not opened and last is not None:  # of an earlier test
            answer = StepStartDecision(StepKind.RESUME, c.rec.node, last.attempt + 1)
        return resolve_step_answer(answer, "resume the node", "no longer ours to resume")
    if c.facts.test is None and find_acceptance_test_job_id(c.rec) is None:
        if node.state != "IDLE" or not node.responding:
            return c.wait("its slurmd has not answered since it was resumed", RecheckInterval.SOON)
        return _submit_test_job(c, name)
    state = c.facts.test.state if c.facts.test else "not known"
    return c.wait(
        f"test {c.rec.test}, job {find_acceptance_test_job_id(c.rec)} ({state})",
        RecheckInterval.SLOWLY,
    )


def _submit_test_job(c: NodeCase, name: str) -> Next:
    level, wanted, node = (
        choose_acceptance_test_level(c.rec, c.policy) or "quick",
        c.policy.acceptance,
        c.facts.slurm,
    )
    return c.take(
        StepKind.TEST,
        name,
        NodeRecoverySignal.UNTESTED,
        "slurmctld does not take its test",
        f"{level} test",
        nodes=(c.rec.node,),
        partition=node.partitions[0] if node and node.partitions else "",
        command=f"{wanted.command} --level {level} --id {c.rec.test}",
        limit_s=wanted.limit_s(level),
    )


def _has_step_since_drain(rec: NodeRecovery, kind: StepKind) -> bool:
    """Return whether a step was begun since the node was last drained."""
    return find_last_step_attempt(list_steps_since_drain(rec), kind) is not None


def _detect_node_failure_during_test(c: NodeCase) -> RecoveryPhaseMove | None:
    """Detect a node that failed under its test, whatever the test's result would be."""
    judged, node = c.facts.assessment, c.facts.slurm
    if c.facts.heard is not None and c.facts.heard != c.rec.generation:
        return RecoveryPhaseMove(NodeRecoverySignal.TEST_FAILED, "it booted during its test")
    if (
        judged is not None
        and judged.condition is NodeCondition.FAULTY
        and has_evidence_newer_than_recovery(judged, c.rec)
    ):
        return RecoveryPhaseMove(
            NodeRecoverySignal.FAULT_AGAIN, f"faulty under its test: {judged.why}"
        )
    if node is not None and node.down and _has_step_since_drain(c.rec, StepKind.RESUME):
        return RecoveryPhaseMove(
            NodeRecoverySignal.TEST_FAILED, "its slurmd was lost during its test"
        )
    return None


def _detect_operator_takeover(c: NodeCase) -> RecoveryPhaseMove | None:
    """Detect an operator who resumes the node before we do, or gives it another Reason: they
    win."""
    node, how = c.facts.slurm, ""
    if node is not None and node.in_service:
        ours = c.facts.held or _has_step_since_drain(c.rec, StepKind.RESUME)
        how = "" if ours else "another operator or tool resumed the node"
    elif node is not None and is_node_drained_by_slurm(node):
        return RecoveryPhaseMove(
            NodeRecoverySignal.TEST_FAILED, f"slurmctld drained it during its test: {node.reason}"
        )
    elif node is not None:
        how = describe_node_takeover(node, c.rec.id)
    return RecoveryPhaseMove(NodeRecoverySignal.OPERATOR_TOOK_OVER, how) if how else None


def _detect_failed_tests(c: NodeCase) -> RecoveryPhaseMove | None:
    """Detect the tests that failed, by the report of the node's agent."""
    failed = [
        f for f in c.facts.results if f.verdict is DeviceVerdict.FAIL and f.check != TEST_SUMMARY
    ]
    if not failed:
        return None
    asked = {f.code for f in failed}
    signal = next(
        (s for word, s in REMEDY_SIGNALS.items() if word in asked), NodeRecoverySignal.TEST_FAILED
    )
    return RecoveryPhaseMove(signal, _format_failed_test_findings(failed), c.facts.results)


def _evaluate_agent_test_results(c: NodeCase) -> Next | None:
    """Return what the node's agent reported, where nothing failed; None while it has reported
    nothing."""
    found = c.facts.results
    tests = [f for f in found if f.check != TEST_SUMMARY]
    if not found:
        return None
    if c.facts.test is not None and c.facts.test.running:
        return c.wait("it passed; its job is about to end", RecheckInterval.SOON)
    judged = c.facts.assessment
    if (
        judged
        and judged.condition is not NodeCondition.HEALTHY
        and has_evidence_newer_than_recovery(judged, c.rec)
    ):
        return c.wait(f"its test is over; {judged.condition}: {judged.why}", RecheckInterval.SLOWLY)
    passed = [f for f in tests if f.verdict is DeviceVerdict.OK]
    if not passed:
        return RecoveryPhaseMove(
            NodeRecoverySignal.UNTESTED, f"all of {len(tests)} tests were skipped", found
        )
    skipped = f", {len(tests) - len(passed)} skipped" if len(tests) > len(passed) else ""
    return RecoveryPhaseMove(
        NodeRecoverySignal.TEST_PASSED, f"{len(passed)} passed{skipped}", found
    )


def _format_failed_test_findings(failed: list[Finding]) -> str:
    texts = [
        f"{f.check.removeprefix(TEST)}: {f.detail or 'failed'}" for f in failed[:FIGURES_SHOWN]
    ]
    more = [f"{len(failed) - FIGURES_SHOWN} more"] if len(failed) > FIGURES_SHOWN else []
    return "; ".join((*texts, *more))


def _evaluate_missing_test_result(c: NodeCase) -> RecoveryPhaseMove | None:
    """Judge the node where a job ended, or never began, without a result."""
    submitted, job = c.last(StepKind.TEST), c.facts.test
    known, wanted = find_acceptance_test_job_id(c.rec), c.policy.acceptance
    if known is None or submitted is None or submitted.resolved is None:
        return None
    if job is not None and job.state == "PENDING":
        late = c.now >= add_seconds_within_bounds(submitted.resolved, wanted.start_s)
        why = f"job {known} has not started for {wanted.start_s:g} s ({job.reason})"
        return RecoveryPhaseMove(NodeRecoverySignal.UNTESTED, why) if late else None
    ended = job is None or job.state in ENDED
    since = job.end if job is not None and job.end is not None else submitted.resolved
    if not ended or c.now < add_seconds_within_bounds(
        max(since, submitted.resolved), wanted.result_s
    ):
        return None
    state = job.state if job is not None else "gone"
    if state in ("TIMEOUT", "NODE_FAIL"):
        return RecoveryPhaseMove(
            NodeRecoverySignal.TEST_FAILED, f"job {known} ended as {state} without a result"
        )
    why = f"job {known} ({state}) ended, and the agent of its node has reported no result"
    if job is not None and job.comment.startswith(COMMENT_OF_TEST):
        said = make_printable(job.comment.removeprefix(COMMENT_OF_TEST))
        why = f"acceptance.command failed without a result: {said}; run `hpctl acceptance check`"
    return RecoveryPhaseMove(NodeRecoverySignal.UNTESTED, why)


def advance_reservation_removal(c: NodeCase) -> Next:
    """Drain the node unless it passed, end its job, delete its reservation, and move on."""
    verdict, why = c.rec.newest_test_result
    node, serves = c.facts.slurm, has_passed_latest_node_test(c.rec, c.policy)
    if serves and (ill := _find_fault_after_passed_test(c)):
        return RecoveryPhaseMove(NodeRecoverySignal.FAULT_AGAIN, ill)
    taken = verdict is NodeRecoverySignal.OPERATOR_TOOK_OVER
    if (
        node is not None
        and not (serves or taken)
        and (not node.closed or is_node_drained_by_slurm(node))
    ):
        return _drain_node_after_test(c, why)
    if serves and c.facts.held and c.now >= c.deadline and node is not None and node.in_service:
        # A person is called: without a drain the node would be lost there, as healthy as it looks.
        return _drain_node_after_test(c, "its test is over, and its reservation does not go")
    if _can_test_job_exist(c):
        return _repeat_step_until_effective(
            c, StepKind.END_TEST, format_acceptance_test_name(c.rec), "the job of its test"
        )
    if c.facts.held:
        return _repeat_step_until_effective(
            c, StepKind.UNRESERVE, format_acceptance_test_name(c.rec), "its reservation"
        )
    if serves:
        return _resume_passed_node(c, why)
    if verdict in FAILED_SIGNALS:
        return RecoveryPhaseMove(
            NodeRecoverySignal.UNRESERVED, "drained, and its reservation is gone"
        )
    if verdict is NodeRecoverySignal.UNTESTED:
        return RecoveryPhaseMove(NodeRecoverySignal.NEEDS_HUMAN, f"not tested: {why}")
    return RecoveryPhaseMove(
        NodeRecoverySignal.NEEDS_HUMAN if verdict is NodeRecoverySignal.DEADLINE else verdict, why
    )


def _resume_passed_node(c: NodeCase, why: str) -> Next:
    """Have a node that passed serve again."""
    node = c.facts.slurm
    if node is not None and node.in_service:
        return RecoveryPhaseMove(NodeRecoverySignal.RETURN_SEEN, why)
    if node is not None and node.closed:
        how = describe_node_takeover(node, c.rec.id)
        if how:
            return RecoveryPhaseMove(NodeRecoverySignal.OPERATOR_TOOK_OVER, how)
        return resolve_step_answer(
            attempt_node_step(c, StepKind.RETURN), "resume the node", "no longer ours to return"
        )
    return c.wait("slurmctld shows the node DOWN", RecheckInterval.SLOWLY)


def _find_fault_after_passed_test(c: NodeCase) -> str:
    """Return why a node that was to serve must not, as long as its reservation keeps others off
    it."""
    judged, node = c.facts.assessment, c.facts.slurm
    if not c.facts.held:
        return ""
    if node is not None and is_node_drained_by_slurm(node):
        return f"slurmctld drained it after its test: {node.reason}"
    if judged is None:
        return ""
    faulty = judged.condition is NodeCondition.FAULTY and has_evidence_newer_than_recovery(
        judged, c.rec
    )
    return f"faulty after its test: {judged.why}" if faulty else ""


def _can_test_job_exist(c: NodeCase) -> bool:
    """Return whether the job of the test is there, or may be: one in doubt is ended by its name."""
    if c.facts.test is not None:
        return c.facts.test.state not in ENDED
    submitted, ended = c.last(StepKind.TEST), c.last(StepKind.END_TEST)
    doubt = (
        submitted is not None
        and submitted.target == format_acceptance_test_name(c.rec)
        and submitted.in_doubt
    )
    return doubt and not (
        ended and ended.accepted and ended.target == format_acceptance_test_name(c.rec)
    )


def _drain_node_after_test(c: NodeCase, why: str) -> Next:
    """Drain the node again, as often as it takes: drains before the test are not counted.

    A drain that is in doubt is repeated at once, because a drained node stays drained.
    """
    last = c.last(StepKind.DRAIN)
    if last is not None and _has_step_since_drain(c.rec, StepKind.RESUME):
        return StepStartDecision(StepKind.DRAIN, c.rec.node, last.attempt + 1, why)
    answer = _repeat_step_until_effective(c, StepKind.DRAIN, c.rec.node, "the drain of the node")
    return (
        StepStartDecision(answer.kind, answer.target, answer.attempt, why)
        if isinstance(answer, StepStartDecision)
        else answer
    )


def delete_leftover_reservation(c: NodeCase) -> Next:
    """Delete the reservation that an earlier recovery could not delete."""
    return _repeat_step_until_effective(
        c, StepKind.UNRESERVE, c.facts.left_in, "the reservation of an earlier test"
    )


def _repeat_step_until_effective(c: NodeCase, kind: StepKind, name: str, what: str) -> Next:
    """Repeat a step that must take effect, however long: the phase's deadline calls a person."""
    last = c.last(kind)
    if last is not None and last.target == name and last.resolved is not None:
        refused = last.outcome is not None and last.outcome.kind is OutcomeKind.REJECTED
        pause = min(last.attempt, PATIENCE_S) if refused else c.policy.node.step_retry_s
        if c.now < add_seconds_within_bounds(last.resolved, pause):
            text = format_call_outcome(last.outcome) if last.outcome else ""
            return c.wait(
                f"waiting for {what} to go: {text}".removesuffix(": "), RecheckInterval.SOON
            )
    number = last.attempt + 1 if last is not None and last.target == name else 1
    return StepStartDecision(kind, name, number, nodes=(c.rec.node,))
