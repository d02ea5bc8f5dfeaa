"""Scripts that are broken on purpose, to show that the search finds what they break."""

from __future__ import annotations

from typing import Final, NamedTuple


class Mutation(NamedTuple):
    """A change of scripts, and the smallest scope in which the search finds it."""

    changes: tuple[tuple[str, str, str], ...]
    """(verb, text, text instead); "*" = all verbs that have the text; "starter" = evsched/batches/starter.py."""
    scene: str
    faults: int
    epochs: int
    wrong: str
    """Part of the report."""


ONE: Final = "one attempt of one job"

MUTATIONS: Final = {
    "an end without a fence": Mutation(
        (
            ("complete", "if text:find(head, 1, true) == 1 then", "do"),
            ("complete", "(ours[i] and redis.call('LREM', list, 1, id) == 1)", "redis.call('LREM', list, 1, id)"),
        ),
        *("plain", 1, 0, "has ended 2 times"),
    ),
    "a run named by its attempt alone": Mutation(
        (("*", "return attempt .. ' ' .. started", "return attempt .. ' 1900000000.015625'"),),
        *("again", 1, 0, "has ended"),
    ),
    "an end that does not leave the count": Mutation(
        (("complete", "        leave(id)\n      end\n    else\n      lost", "      end\n    else\n      lost"),),
        *("limit", 0, 0, "does not end"),
    ),
    "an end that does not open the gate": Mutation(
        (("complete", "  admit(0, now)\n  return lost, refused", "  return lost, refused"),),
        *("limit", 0, 0, "the gate is open"),
    ),
    "a job counted twice as it enters": Mutation(
        (("*", "redis.call('HINCRBY', in_flight, '*', 1)", "redis.call('HINCRBY', in_flight, '*', 2)"),),
        *("limit", 0, 0, "in_flight has"),
    ),
    "a limit of a group that is ignored": Mutation(
        (("dispatch", "most = most and math.max(0,", "most = most and 100 + math.max(0,"),),
        *("group", 0, 0, "beyond the limit"),
    ),
    "a limit of a task in which the jobs in flight do not count": Mutation(
        (
            (
                "limit",
                "local payload = whole_field(id, 'payload')\n  payloads_read",
                "do return nil end\n  local payload = whole_field(id, 'payload')\n  payloads_read",
            ),
        ),
        *("limit of a task that comes and goes, inline", 0, 0, "beyond the limit"),
    ),
    "dispatch an hour early": Mutation(
        (("dispatch", "'-inf', seconds(now))\n\n-- Members", "'-inf', seconds(now + 3600))\n\n-- Members"),),
        *("reschedule", 0, 0, "early"),
    ),
    "an edit of a job that has begun": Mutation(
        (("reschedule", "elseif holder then\n    return nil,", "elseif false then\n    return nil,"),),
        *("edit", 0, 0, "is in schedule and processing"),
    ),
    "an edit under the old group": Mutation(
        (("reschedule", "remove_waiting(id) -- before", "-- before"),),
        *("edit", 0, 0, "is in schedule and ready"),
    ),
    "start counts a repeated call again": Mutation(
        (("start", "if holder ~= worker or attempts == 0", "if true"),),
        *("plain", 1, 0, "is charged"),
    ),
    "begin without a fence": Mutation(
        (("begin", "if owns(worker, id, run) and redis.call('LPOS', list, id) then", "if true then"),),
        *(ONE, 0, 1, "began 2 times"),
    ),
    "requeue leaves the id in the list": Mutation(
        (
            (
                "requeue",
                "  redis.call('LREM', list, -1, id)\nend\nreturn_to_backlog(back)",
                "end\nreturn_to_backlog(back)",
            ),
        ),
        *("plain", 0, 0, "recovery does not end"),
    ),
    "requeue keeps the attempt of a run without a mark": Mutation(
        (("requeue", "if not died or not begun then\n    count_attempts(id, -1)\n  end", ""),),
        *(ONE, 1, 1, "is charged"),
    ),
    "requeue ignores a renewed lease": Mutation(
        (("requeue", "(redis.call('ZSCORE', leases, worker) or 'none') ~= lease", "false"),),
        *(ONE, 0, 1, "had renewed its lease"),
    ),
    "requeue takes a job that was started meanwhile": Mutation(
        (("requeue", "(died or is_current(id, run))", "true"),), *("one slot", 1, 0, "was handed back while it runs")
    ),
    "a run that was cancelled before it began is charged": Mutation(
        (("start", "if holder == worker and not field_of(id, 'begun') then", "if false then"),),
        *("cancel", 1, 0, "is charged"),
    ),
    "a hook that is forgotten": Mutation(
        (("complete", "if hook ~= '' then", "if false then"),), *("hook", 0, 0, "its hook has 0 jobs")
    ),
    "a cancelled run whose client gets no reply": Mutation(
        (("start", "reply == '1' or wants_reply(id)", "reply == '1'"),), *("cancel", 0, 0, "1 times in the history")
    ),
    "an end that is not in the history": Mutation(
        (("complete", "  write_history(now)\n  admit(0, now)\n  return lost", "  admit(0, now)\n  return lost"),),
        *("plain", 0, 0, "has ended 1 times, 0 times in the history"),
    ),
    "an end that is in the history twice": Mutation(
        (
            (
                "complete",
                "  list.size = size + 4",
                "  for i = 1, 4 do\n    list[size + 4 + i] = list[size + i]\n  end\n  list.size = size + 8",
            ),
        ),
        *("plain", 0, 0, "has ended 1 times, 2 times in the history"),
    ),
    "an id in two lists that runs twice": Mutation(
        (("start", "elseif finished then", "elseif false then"),),
        *("again and kept", 0, 0, "was started again after its end"),
    ),
    "occurrences that overlap": Mutation(
        (("dispatch", "current ~= id and unended(current) then", "false then"),),
        *("recurrence that skips", 0, 1, "may not overlap"),
    ),
    "an end that no batch hears of": Mutation(
        (("complete", "  member_reports.write(now)\n  if not next(endings.lists)", "  if not next(endings.lists)"),),
        *("batch", 0, 0, "does not end"),
    ),
    "an old end that counts again": Mutation(
        (("batch_count", "newer > 0 or", "newer ~= 0 or"),), *("batch", 0, 0, "as 2, it has been [2, 1]")
    ),
    "a revived member whose ends are not new": Mutation(
        (("revive", "(tonumber(turn) or 0) + 1", "(tonumber(turn) or 0)"),), *("batch", 0, 0, "counts member 1 as")
    ),
    "a failed batch that stays failed": Mutation(
        (("batch_count", "if batch.state == 'failed' and (left > 0 or batch.is_turned)", "if false"),),
        *("batch", 0, 0, "the callback of batch b says"),
    ),
    "a member that dies again before the batch hears of its revival": Mutation(
        (("*", "batch.is_turned = batch.is_turned or newer > 0", ""),), *("batch", 0, 0, "the callback of batch b says")
    ),
    "rounds of a batch that are not counted": Mutation(
        (("*", "batch.round = batch.round + 1", ""),), *("batch", 0, 0, "has called")
    ),
    "a callback that is forgotten": Mutation(
        (("*", "add_chore(seconds(now), 'call',", "add_chore(seconds(now), 'forgotten',"),),
        *("batch", 0, 0, "has called []"),
    ),
    "a batch that its parent does not hear of": Mutation(
        (("*", "if batch.parent then", "if false then"),), *("batch in a batch", 0, 0, "batch o does not end")
    ),
    "a batch that ends while jobs are added": Mutation(
        (("*", "batch.closed and batch.adding == 0 and", "batch.closed and"),),
        *("batch that is cancelled", 0, 0, "is cancelled, with"),
    ),
    "a reservation made twice": Mutation(
        (("batch_add", "elseif first then", "elseif false then"),),
        *("batch that grows", 1, 0, "reservations"),
    ),
    "jobs enqueued after their reservation": Mutation(
        (("enqueue", "now > tonumber(till)", "false"),), *("batch that grows", 0, 1, "as missing, it is there")
    ),
    "a call of an older pause that comes late": Mutation(
        (("batch_hold", "if tonumber(stamp) >= last then", "if true then"),),
        *("batch that two pause", 0, 0, "the home says"),
    ),
    "a fetched job that starts although its batch is paused": Mutation(
        (("start", "policy.batches and (holder", "false and (holder"),),
        *("batch that is paused", 0, 0, "b.0 starts"),
    ),
    "paused batches that are not counted": Mutation(
        (("batch_hold", "redis.call('HINCRBY', limits, 'batches', more) <= 0", "false"),),
        *("batch that is paused", 0, 0, "b.0 starts"),
    ),
    "a pause that is forgotten with its program": Mutation(
        (("*", "add_chore(seconds(now + after), 'hold', batch.id, batch.stamp, 0)", ""),),
        *("batch that is paused", 1, 0, "the home says"),
    ),
    "a pause that outlives its batch": Mutation(
        (("*", "  end_batch_pause(batch, now, 0)\n", ""),), *("paused batch that is cancelled", 0, 0, "are held")
    ),
    "a node that is released before those before it are done": Mutation(
        (("*", "waits == 0 and 0 or 7", "waits <= 1 and 0 or 7"),), *("graph", 0, 0, "was enqueued when node")
    ),
    "a node that runs despite failures, but is stopped": Mutation(
        (("*", "if despite == '!' then", "if false then"),), *("graph", 0, 0, "with despite=True")
    ),
    "a node that stays stopped when the one before it is revived": Mutation(
        (("*", "- (was == '2' and 1 or 0)", ""),), *("graph", 0, 0, "with despite=False")
    ),
    "a stopped node that does not count": Mutation(
        (("*", "batch.stopped = batch.stopped + (is == 6", "batch.stopped = batch.stopped + (is == 9"),),
        *("graph", 0, 0, "does not end"),
    ),
    "released nodes that are forgotten with their keeper": Mutation(
        (("*", "add_chore(seconds(now), 'start', batch.id, batch.starts[#batch.starts])", ""),),
        *("graph that begins", 0, 0, "does not end"),
    ),
    "changes of a graph that are forgotten": Mutation(
        (("*", "add_chore(seconds(now), 'ripple', batch.id, batch.rippled)", ""),),
        *("graph that ripples", 0, 0, "does not end"),
    ),
    "edges that are passed on twice": Mutation(
        (("*", "{ node, was, is, place - 1 }", "{ node, was, is, 0 }"),),
        *("graph that ripples", 0, 0, "chores are left"),
    ),
    "a cancelled graph whose nodes wait": Mutation(
        (("batch_close", "      cancel_waiting(batch)", ""),), *("graph that is cancelled", 0, 0, "does not end")
    ),
    "a cancelled graph that releases nodes": Mutation(
        (("*", "if batch.stop then\n    redis.call('DEL', key)", "if false then\n    redis.call('DEL', key)"),),
        *("graph that has failed", 0, 0, "is cancelled, with [7, 7]"),
    ),
    "a node that is started although its graph was cancelled meanwhile": Mutation(
        (("starter", 'stop = await self._client.send(store.batch_field(batch, "stop"))', "stop = None"),),
        *("graph that is cancelled", 0, 0, "although its batch was cancelled"),
    ),
    "a cancelled node that a late call brings back": Mutation(
        (("cancel", "left.mark(id, run[6], life)", ""),), *("graph that is cancelled", 0, 0, "has ended [3, 3]")
    ),
    "a cancelled node that has not come yet": Mutation(
        (("starter", "if node is not None and node.over is None:\n", "if False:\n"),),
        *("graph that is cancelled", 0, 0, "although its batch was cancelled"),
    ),
    "a node that is not the one that was released": Mutation(
        (("starter", "/{batch}/{first}/{until}", "/{batch}/{first + 1}/{until}"),), *("graph", 0, 0, "does not end")
    ),
    "a node that gets no result": Mutation(
        (("starter", "args.append(value)", "args.append(None)"),), *("graph that begins", 0, 0, "has got None of node")
    ),
    "a signal that wakes nobody": Mutation(
        (("signal", "  redis.call('ZADD', schedule, 'XX', seconds(now), id)\n", ""),),
        *("signal", 0, 0, "does not end"),
    ),
    "a wait that overlooks the signal that has just come": Mutation(
        (("snooze", "local come = signal ~= '' and signal_of(id, signal)", "local come = false"),),
        *("signal", 0, 0, "has got its signal, and waits"),
    ),
    "a second signal of a name": Mutation(
        (("signal", "if find_line(text, signal) then", "if false then"),), *("signal", 0, 0, "two signals of one name")
    ),
    "a signal after its time": Mutation(
        (("signal", "elseif ends and ends <= now then", "elseif false then"),),
        *("signal in time", 0, 1, "is dead since no signal came"),
    ),
}
"""By what is wrong with each."""
