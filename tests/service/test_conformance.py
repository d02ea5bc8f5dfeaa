"""Workers and producers in other languages: the commands of docs/workers.md, the conformance kit, and a queue that Node
and Python share under kills.
"""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from evsched.codec import Codec
from evsched.conformance.kit import chosen, run_scenes
from evsched.conformance.producer_scenes import PRODUCER_SCENES, ProducerStage
from evsched.conformance.python_worker import app
from evsched.conformance.sealed_scenes import SEALED_SCENES
from evsched.conformance.stage import SLOTS, Stage
from evsched.conformance.worker_scenes import WORKER_SCENES
from evsched.jobs.job import RetryFields, encode
from evsched.jobs.sealed import MARK, About
from tests.service.test_api import like, serving
from tests.support.api import WORK, WRITE
from tests.support.cli import Cli
from tests.support.patience import PATIENCE
from tests.support.sealed_jobs import OLD

ROOT = Path(__file__).parents[2]
PYTHON = f"{sys.executable} -m evsched worker evsched.conformance.python_worker:app --log-level WARNING"
NODE = f"node {ROOT / 'clients/node/conformance.mjs'}"
NODE_REDIS = ROOT / "tests/service/node/node_modules/redis"
RETRY = RetryFields(attempts=50)
TSC = ROOT / "tests/house/typed/node_modules/typescript/bin/tsc"


def has_node() -> bool:
    """Return whether there is a Node that the package supports."""
    if shutil.which("node") is None:
        return False
    version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout
    return int(version.removeprefix("v").partition(".")[0]) >= 20


needs_node = pytest.mark.skipif(not has_node(), reason="there is no Node 20 or newer")


def test_the_commands_of_the_documentation_work(cli: Cli) -> None:
    page = (ROOT / "docs/workers.md").read_text()
    blocks = re.findall(r"^```(sh|json)\n(.*?)^```$", page, re.M | re.S)
    assert len(blocks) > 8
    cli.environment |= {"EVSCHED_API_WRITE_TOKENS": WRITE, "EVSCHED_API_WORK_TOKENS": WORK}
    with cli.started("dispatcher"), serving(cli) as (url, _, _):
        tokens = {"WRITE": f"Authorization: Bearer {WRITE}", "WORK": f"Authorization: Bearer {WORK}"}
        shell = {**cli.environment, "API": f"{url}/v1/queues/default", **tokens}
        printed = ""
        for kind, text in blocks:
            if kind == "json":
                assert like(without_run(printed), without_run(text)), f"{printed} instead of {text}"
                continue
            done = subprocess.run(
                ["bash", "-ec", text], env=shell, cwd=cli.folder, capture_output=True, text=True, timeout=PATIENCE,
                check=False,
            )  # fmt: skip
            assert (done.returncode, '"code":' in done.stdout) == (0, False), done.stdout + done.stderr
            printed = done.stdout


def without_run(text: str) -> Any:
    return json.loads(re.sub(r'"run": ?"[^"]*"', '"run": ""', text))


def test_our_own_worker_has_the_tasks_that_the_page_defines() -> None:
    page = (ROOT / "docs/conformance.md").read_text()
    assert set(re.findall(r"^\| `(\w+)\(", page, re.M)) == set(app.tasks)
    parts = WORKER_SCENES, SEALED_SCENES, PRODUCER_SCENES
    assert [len({scene.name for scene in scenes}) for scenes in parts] == [*map(len, parts)]
    assert re.findall(r"^\| `evsched conformance.*?\| (\d+) \|", page, re.M) == [str(len(scenes)) for scenes in parts]


def conformance(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "evsched", "conformance", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


@pytest.mark.extra
@needs_node
@pytest.mark.timeout(600)
def test_the_node_worker_passes_all_scenes() -> None:
    done = conformance("--command", NODE)
    assert (done.returncode, "FAILED" in done.stdout) == (0, False), done.stdout + done.stderr


@pytest.mark.extra
@needs_node
@pytest.mark.timeout(600)
def test_the_node_worker_opens_and_seals() -> None:
    done = conformance("--sealed", "--command", NODE)
    assert (done.returncode, "FAILED" in done.stdout) == (0, False), done.stdout + done.stderr


NODE_CODEC = """
import { Codec } from '%s'
const [encrypted, compressed, ...invalid] = JSON.parse(process.argv[1])
const key = Buffer.alloc(32, 1)
const tried = (make) => { try { return make() } catch (error) { return error.message } }
const job = { id: 'a', task: 't', args: [], kwargs: {}, sealed: null }
const open = (acceptPlain, more) => tried(() => new Codec({ old: key }, { acceptPlain }).openCall({ ...job, ...more }))
console.log(JSON.stringify([
  open(true, { args: [1] }), open(['t'], { args: [1] }), open(false, { sealed: encrypted }),
  open(false, { args: [1] }), open(['u'], {}), open(false, { sealed: compressed }),
  open(false, { sealed: encrypted, kwargs: { x: 1 } }), open(true, { id: 'b', sealed: encrypted }),
  new Codec().sealResult('a', { short: 1 }), new Codec().sealResult('a', { 'evsched.sealed': {} }),
  tried(() => new Codec({ a: key, b: key })), tried(() => new Codec({ a: 'AAAA' })),
  invalid.map((sealed) => open(true, { sealed })),
]))
"""


@needs_node
def test_the_codec_of_node_refuses_as_ours_does() -> None:
    about = About("arguments", "t", "a")
    sealed = [codec.seal(about, b"[[2],{}]") for codec in (Codec({"old": OLD}), Codec(compress_above=0))]
    invalid = b'{"a":1}', b"[[1]]", b'[["v"],{},3]', b"[[1],5]", b"[null,{}]", b'[["\xe4"],{}]', b"[[", b""
    sealed += [Codec({"old": OLD}).seal(about, text) for text in invalid]
    script = NODE_CODEC % (ROOT / "clients/node/evsched.js").as_uri()
    words = "node", "--input-type=module", "--eval", script, encode(sealed).decode()
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    *opened, plain, unknown, short, other, other_job, as_is, marked, two, cut, not_valid = json.loads(done.stdout)
    assert opened == [{"args": args, "kwargs": {}} for args in ([1], [1], [2])]
    for refused in (plain, unknown, short, other):
        assert refused.startswith(
            "its arguments cannot be read: they are not encrypted, and this worker takes no others"
        )
    assert (
        "they were sealed for job a, and somebody has put them into job b. Revive the job when it can be read"
        in other_job
    )
    assert (as_is, marked) == ({"short": 1}, {MARK: {"data": "eyJldnNjaGVkLnNlYWxlZCI6e319", "of": "a"}})
    assert two == "Codec: say with `write` which key encrypts"
    assert cut.startswith("Codec: key a has 3 bytes, and AES-256 needs 32")
    for one in not_valid:
        assert one.startswith("its arguments cannot be read: once opened, they are not ")


PRODUCERS = {
    "our own client": f"{sys.executable} -m evsched.conformance.python_producer",
    "the Node package": f"node {ROOT / 'clients/node/producer.mjs'}",
    "node-redis, records": f"node {ROOT / 'tests/service/node/producer.mjs'}",
    "node-redis, inline jobs": f"node {ROOT / 'tests/service/node/producer.mjs'} inline",
}

CARELESS = """
import json, os, redis, sys
client = redis.Redis.from_url(os.environ["EVSCHED_URL"])
root = "evsched:{%s}:" % os.environ["CONFORMANCE_QUEUE"]
for line in sys.stdin:
    request = json.loads(line)
    if request["verb"] != "enqueue":
        print("not JSON", flush=True)
        continue
    job = request["job"]
    due, job_id, priority = job.pop("due", 0), job.pop("id"), job.pop("priority", 5)
    if job.get("timeout"):
        raise SystemExit("out of order")
    client.hset(root + "job:" + job_id, mapping={"payload": json.dumps(job | {"prio": 1}), "priority": priority})
    client.zadd(root + "schedule", {job_id: due * 1000})
    print(json.dumps({"id": job_id}), flush=True)
"""


@pytest.fixture(scope="module")
def producing() -> Generator[ProducerStage]:
    with ProducerStage(sys.executable, 4.0) as stage:
        yield stage


@pytest.mark.extra
@needs_node
@pytest.mark.skipif(not NODE_REDIS.is_dir(), reason="no npm package redis in tests/service/node")
def test_producers_pass_all_scenes(producing: ProducerStage, capsys: pytest.CaptureFixture[str]) -> None:
    for name, command in PRODUCERS.items():
        producing.change_producer(command)
        assert run_scenes(producing, PRODUCER_SCENES) == 0, f"{name}: {capsys.readouterr().out}"
        skipped = "; skipped: id-twice" if "inline" in name else ""
        assert capsys.readouterr().out.endswith(f"{30 - bool(skipped)} of 30 scenes passed{skipped}\n")


@pytest.mark.extra
def test_the_kit_says_what_a_producer_does_wrong(
    producing: ProducerStage, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    command = f"{sys.executable} {tmp_path / 'careless.py'}"
    (tmp_path / "careless.py").write_text(CARELESS)
    producing.change_producer(command)
    assert run_scenes(producing, chosen(PRODUCER_SCENES, ["ids", "priority"])) == 1
    assert "not valid by `evsched schema payload`: Object contains unknown field `prio`" in capsys.readouterr().out
    (tmp_path / "careless.py").write_text(CARELESS.replace(' | {"prio": 1}', ""))
    producing.change_producer(command)
    assert run_scenes(producing, chosen(PRODUCER_SCENES, ["id-again", "due", "timeout", "cancel"])) == 1
    printed = capsys.readouterr().out
    for seen in (
        r"the record expires in 3\S+ s, before the job is due: PERSIST it",
        r"the score is 1900000000000.0+, not 1900000000.0",
        r"no reply to 'enqueue': it has ended[^.]*\n  the end of its output:\n    out of order",
        r"its reply to 'cancel' is 'not JSON\\n', not an object of JSON",
        r"0 of 4 scenes passed; failed: id-again, due, timeout, cancel\n$",
    ):
        assert re.search(seen, printed), printed


FAULTY = """
import json, os, redis, sys
from evsched.client.option_values import id_of_arguments
client, fault = redis.Redis.from_url(os.environ["EVSCHED_URL"]), sys.argv[1]
root = "evsched:{%s}:" % os.environ["CONFORMANCE_QUEUE"]
for line in sys.stdin:
    job = json.loads(line)["job"]
    due, group, unique = job.pop("due", 0), job.pop("group", "g"), job.pop("unique", {})
    job_id = job.pop("id", None) or id_of_arguments(job["task"], job["args"], job["kwargs"])
    payload = json.dumps(job | {"reply": True} if fault == "always-reply" else job, ensure_ascii=False).encode()
    if fault == "latin-1":
        payload, group = payload.decode().encode("latin-1", "replace"), group.encode("latin-1", "replace")
    for name in {"twice": [job_id, "other"], "unsupported": []}.get(fault, [job_id]):
        client.hset(root + "job:" + name, mapping={"payload": payload, "group": group})
        client.zadd(root + "schedule", {name: due}, nx=True)
    if "within" in unique:
        client.set(root + "unique:" + job_id, "", px=unique["within"])
    half = '"\\\\ud800"}'
    other = {"deep": "[" * 100_000, "unsupported": '{"unsupported": ' + half, "surrogate": '{"error": ' + half}
    print(other.get(fault) or json.dumps({"id": job_id}), flush=True)
"""


@pytest.mark.extra
@pytest.mark.timeout(300)
def test_whatever_a_producer_writes_or_answers_is_a_failed_scene(
    producing: ProducerStage, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "faulty.py").write_text(FAULTY)
    for fault, scene, seen in (
        ("latin-1", "unicode", r"what it wrote is b'.*, not UTF-8"),
        ("latin-1", "group", r"the group is b'kunde 7/\\xe4\?', not UTF-8"),
        ("deep", "ids", r"its reply to 'enqueue' is '\[{150,}"),
        ("surrogate", "ids", r"it replied to 'enqueue': \\ud800"),
        ("unsupported", "ids", r"\A\w+ ids: \\ud800\n0 of 1 scenes passed; skipped: ids\n"),
        ("twice", "ids", r"jobs that it was not asked for \(1\): other"),
        ("milliseconds", "unique-within", r"the key `unique:ID` expires in \S+ s, not in 3600 s"),
        ("always-reply", "reply", "the reply in the payload is True, not None"),
    ):
        producing.change_producer(shlex.join([sys.executable, str(tmp_path / "faulty.py"), fault]))
        assert run_scenes(producing, chosen(PRODUCER_SCENES, [scene])) == 1, fault
        printed = capsys.readouterr().out
        assert re.search(seen, printed), printed


@pytest.mark.extra
@pytest.mark.timeout(600)
def test_our_own_worker_passes_scenes() -> None:
    """By hand the kit runs all of them. Here, each start of this worker costs most of a second of CPU time."""
    scenes = "arguments unicode numbers ids slots redaction retries last-attempt retry-later timeout progress kill"
    done = conformance(*scenes.split(), "--command", PYTHON)
    assert (done.returncode, "FAILED" in done.stdout) == (0, False), done.stdout + done.stderr


@pytest.mark.extra
def test_the_kit_says_what_a_worker_does_wrong(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(
        "from evsched import App\napp = App(queue='conformance')\n@app.task\nasync def echo(value): return [value]\n"
    )
    worker = f"env PYTHONPATH={tmp_path}:{ROOT} {sys.executable} -m evsched worker wrong:app"
    done = conformance("result", "--command", worker)
    assert done.returncode == 1
    assert "FAILED  result" in done.stdout
    assert "expected: the result of a job is that of its handler\n  seen: the result is ['hello'], not 'hello'" in (
        done.stdout
    )
    assert done.stdout.endswith("0 of 1 scenes passed; failed: result\n")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("nothing", "--command", "env"), "there is no scene 'nothing'"),
        (("result",), "give the command that starts"),
        (("--producer", "x", "--command", "y"), "leave --command and --sealed out"),
        (("--command", "no-such-program x"), "there is no program 'no-such-program'"),
        (("--command", "true", "--lease", "0"), "--lease is 0: give 0.5 to 3600 s"),
        (("--producer", "x 'y"), 'the command "x \'y" cannot be read: No closing quotation'),
    ],
)
def test_a_wrong_call_of_the_kit_is_explained(cli: Cli, words: tuple[str, ...], says: str) -> None:
    done = cli.run("conformance", *words)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert says in done.stderr


def share_under_kills(jobs: int, kills: int, seed: int) -> str:
    """Have a Node worker and a Python worker share a queue, and kill one of them again and again.

    Each job must be done, and only a run that a kill cut short may be repeated.
    """
    rng = random.Random(seed)
    with Stage(NODE, 2.0) as stage:
        programs = [(command, stage.start(command)) for command in (NODE, PYTHON)]
        # One more than the slots of one program: both of them work before the first kill. The kills end these runs.
        ids = [stage.enqueue("work", 3600, retry=RETRY) for _ in range(SLOTS + 1)]
        for job_id in ids:
            stage.begun(job_id, within=PATIENCE)
        ids += [stage.enqueue("work", rng.uniform(0.05, 0.4), retry=RETRY) for _ in range(jobs)]
        for kill in range(kills):
            wanted = jobs * kill // kills
            stage.until(lambda: ended(stage) >= wanted, f"{wanted} jobs end", PATIENCE)  # noqa: B023 - called at once
            at = kill % 2
            command, program = programs[at]
            program.signal(signal.SIGKILL)
            programs[at] = command, stage.start(command)
        statuses = [stage.ended(job_id, PATIENCE) for job_id in ids]
        assert {status.outcome for status in statuses} == {"done"}
        lines = Counter(tuple(line.split()) for line in stage.log.read_text().splitlines())
        begun = Counter(job_id for verb, job_id, _ in lines.elements() if verb == "begin")
        lost = {status.id: sum(run.outcome.startswith("lost") for run in status.runs) for status in statuses}
        again = {job_id: count - 1 for job_id, count in begun.items() if count > 1}
        assert all(lost[job_id] >= count for job_id, count in again.items()), (
            "a run that was not cut short was repeated"
        )
        runs = Counter("node" if run.worker.startswith("http:") else "python" for one in statuses for run in one.runs)
        assert min(runs["node"], runs["python"]) > 0
        return f"{len(ids)} jobs, {kills} kills: {sum(again.values())} runs were cut short; runs: {dict(runs)}"


def ended(stage: Stage) -> int:
    return len({line.split()[1] for line in stage.log.read_text().splitlines() if line.startswith("end ")})


TYPED = """\
import { Client, Codec, GiveUp, type Job, RetryLater, Worker } from './evsched.js'
const add = ({ args: [a, b], signal, progress }: Job): number => {
  progress(1, 2)
  signal.throwIfAborted()
  return a + b
}
const worker = new Worker({ url: 'http://x', tasks: { add, later: () => { throw new RetryLater(5) } }, concurrency: 2 })
const ended: Promise<void> = worker.run()
worker.stop()
const client = new Client({ url: 'http://x' })
const scheduled = await client.enqueue('add', { args: [1, 2], due: new Date(), retry: { attempts: 2 } })
const id: string = scheduled.id
await client.reschedule(id, new Date())
new Worker({ url: 'http://x', tasks: {}, codec: new Codec({ old: 'AAAA', new: new Uint8Array(32) }, { write: 'new' }) })
// @ts-expect-error: there is no such option
new Worker({ url: 'http://x', tasks: {}, slots: 2 })
export { GiveUp, ended, id }
"""


WRONG_IN_NODE = {
    "new Worker({ url, tasks, concurrency: 0 })": "Worker: concurrency is 0: give 1 to 100",
    "new Worker({ url, tasks, concurency: 5 })": "Worker: there is no option concurency",
    "new Worker({ url, tasks, wait: NaN })": "Worker: wait is NaN: give 0 to 60 s",
    "new Worker({ url, tasks, grace: 'x' })": "Worker: grace is x: give a number of seconds",
    "new Worker({ url, tasks: 5 })": "Worker: tasks is 5: give an object with a handler for each task",
    "new Worker({ tasks })": "Worker: url is undefined: give where evsched api is: http://HOST:PORT",
    "new Client({ url: '127.0.0.1:17' })": "Client: url is 127.0.0.1:17: give where evsched api is: http://HOST:PORT",
    "await new Client({ url }).enqueue('add', { delay: NaN })": "NaN is not a number of JSON",
    "await new Client({ url }).enqueue('add', { args: [1n] })": "Do not know how to serialize a BigInt",
    "new RetryLater(NaN)": "RetryLater: seconds is NaN: give a number of seconds",
    "new Codec({})": "Codec: keys has no key: give keys by their ids, or leave it out to compress only",
}


@needs_node
def test_the_node_package_refuses_wrong_options() -> None:
    lines = [
        f"await (async () => {{ {one} }})().catch(({{ message }}) => console.log(message))" for one in WRONG_IN_NODE
    ]
    head = f"import {{ Client, Codec, RetryLater, Worker }} from '{ROOT / 'clients/node/evsched.js'}'"
    text = "\n".join([head, "const url = 'http://127.0.0.1:1', tasks = { a() {} }", *lines])
    words = ["node", "--input-type=module", "--eval", text]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout.splitlines() == [*WRONG_IN_NODE.values()]


@pytest.mark.extra
@needs_node
@pytest.mark.skipif(not TSC.is_file(), reason="no npm package typescript in tests/house/typed")
def test_the_types_of_the_node_package_fit_its_use(tmp_path: Path) -> None:
    for file in ("evsched.d.ts", "evsched.js", "package.json"):
        shutil.copy(ROOT / "clients/node" / file, tmp_path)
    (tmp_path / "use.ts").write_text(TYPED)
    flags = ("--noEmit", "--strict", "--module", "nodenext", "--target", "es2023", "--lib", "es2023,dom")
    done = subprocess.run(["node", TSC, *flags, "use.ts"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.extra
@needs_node
def test_node_and_python_share_a_queue_under_kills() -> None:
    share_under_kills(jobs=60, kills=6, seed=4)


if __name__ == "__main__":
    print(share_under_kills(*map(int, sys.argv[1:])))  # noqa: T201 - by hand: jobs, kills, seed
