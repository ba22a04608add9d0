"""The guards of the scripts, each taken away in turn: what the checks are worth.

A row names a script, the guard's text in its source as it is loaded, and what it becomes. A guard in a piece that
several scripts share is named with one of those that use it; `*` is every script. `kills.json` says which seed shows it
by which check.
"""

from __future__ import annotations

import hashlib

import msgspec

from shared.queue.loader import NAMES, Script, load, placed


class Mutant(msgspec.Struct, frozen=True):
    """`alone`: the number of what must hold that finds it out with the model left out."""

    script: str
    guard: str
    becomes: str
    alone: str = ""

    def scripts(self) -> dict[str, Script]:
        """By name, without the guard. Raises where it is not in their source any more."""
        mutated = {}
        for name in NAMES if self.script == "*" else (self.script,):
            script = load(name)
            source, guard = script.source, self._placed(self.guard, script)
            if self.script == "*" and guard not in source:
                continue  # it has no use for the piece
            assert source.count(guard) == 1, f"{name} has no such guard: {self.guard}"
            mutated[name] = script_of(
                name, source.replace(guard, self._placed(self.becomes, script))
            )
        assert mutated, f"no script has such a guard: {self.guard}"
        return mutated

    @staticmethod
    def _placed(text: str, script: Script) -> str:
        return placed(text, script.fixed, len(script.fixed))

    def __str__(self) -> str:
        return f"{self.script}: {self.guard} -> {self.becomes}"


def script_of(name: str, source: str) -> Script:
    sha = hashlib.sha1(source.encode()).hexdigest()
    return msgspec.structs.replace(load(name), source=source, sha=sha)


def _rows(script: str, *rows: tuple[str, str] | tuple[str, str, str]) -> list[Mutant]:
    return [Mutant(script, *row) for row in rows]


# Which operations of the schedule bring a script into the states that its guards are for.
FOCUS = {
    "*": ("jump", "claim", "beat"),
    "tick": ("jump", "tick", "claim", "reap"),
    "submit": ("resubmit", "chain", "crowd", "list", "drop", "finish", "claim"),
    "reserve": ("list", "resubmit", "fill"),
    "submit_many": ("list", "bring", "cancel_list", "fill"),
    "claim": ("submit", "claim", "claim_again", "late_reply", "poison", "nack", "reap", "advance"),
    "beat": ("submit", "claim", "beat", "reap", "nack", "advance"),
    "emit": ("submit", "claim", "emit", "nack", "reap", "advance", "fill", "stream"),
    "nack": ("submit", "claim", "nack", "promote", "advance"),
    "reap": ("submit", "claim", "beat", "reap", "advance"),
    "promote": ("nack", "promote", "claim"),
    "finish": (
        "submit",
        "claim",
        "finish",
        "cancel",
        "chain",
        "nack",
        "walk_away",
        "reap",
        "advance",
        "hear_bell",
    ),
    "end": ("submit", "cancel", "end_early", "chain", "nack", "claim"),
    "end_missing": ("list", "bring", "cancel_list", "sweep"),
    "settle": ("submit", "claim", "cancel", "settle", "finish", "nack"),
    "peek": ("submit", "peek", "claim", "nack", "finish", "list"),
    "notify": ("submit", "claim", "finish", "notify"),
    "drop": ("submit", "claim", "emit", "finish", "drop"),
    "attach": ("attach", "submit", "list", "claim", "emit"),
    "drop_letter": ("submit", "claim", "nack", "finish", "sweep", "drop_letter"),
    "requeue_letter": ("submit", "claim", "nack", "finish", "sweep", "requeue", "drop_letter"),
    "sweep": ("submit", "advance", "sweep"),
    "prune": ("claim", "beat", "finish", "prune", "advance", "list"),
}
MUTANTS = [
    # The queue clock
    *_rows(
        "*",
        ("if clk > 0 and now - clk > 5000 then now = clk + 1000 end", ""),
        ("if clk > now then now = clk end", ""),
    ),
    *_rows(
        "tick",
        ("step > 5000 or step < -1000", "step > 5000"),
        ("step > 5000 or step < -1000", "step < -1000"),
        (", 'grace', int(now + 2 * tonumber(ARGV[2]))", ""),
        ("now - 10 * ABSENT_MS", "now"),
    ),
    # What comes in
    *_rows(
        "submit",
        ("#!lua\n", "#!lua flags=allow-oom\n"),
        ("if res then", "if false then"),
        ("if cmsgpack.unpack(res)[12] ~= m[8] then return {'MISMATCH'} end", ""),
        ("if old then", "if false then"),
        ("if old[R_DG] ~= m[8] then return {'MISMATCH'} end", ""),
        ("if redis.call('EXISTS', KEYS[NK + 2]) == 1 then return {'MISMATCH'} end", ""),
        ("if refusal then return refusal end", ""),
        ("redis.call('XADD', K_in, '*', 'i', rid, 'p', payload)", "'0-1'", "S3"),
        ("'i', rid, 'p', payload)", "'i', rid, 'p', 'p')", "S3"),
        ("if full then return {'FULL', full, n_live} end", ""),
        ("all_n > caps[1] then", "all_n > 2 * caps[1] then", "S8"),
        ("return 'tenant_tokens', everyone.n", "return 'tokens', everyone.n"),
        ("math.max(time_of(virtual), time_of(own))", "time_of(virtual)", "S9"),
        ("math.max(time_of(virtual), time_of(own))", "time_of(own)"),
        ("tag + tokens / weight)", "tag + tokens)", "S9"),
        ("if rec[R_TN] ~= tenant then return {'UNKNOWN', pred} end", ""),
        ("if #waiting_for(pred) >= DEPENDENTS_MAX then return {'CROWDED', pred} end", ""),
        ("outcome[13] ~= tenant", "false"),
        ("outcome[18] > 0", "false"),
        ("redis.call('EXISTS', keys[first + 2 * i - 1]) == 0", "false"),
        ("if outcome[2] ~= 'F' then", "if false then"),
        ("if left_ms >= 0 and left_ms < timeout_ms then", "if false then"),
        ("if rec[R_NB] > now then", "if false then"),
        ("ring()\n-- The first", "-- The first"),
    ),
    *_rows(
        "reserve",
        ("#!lua\n", "#!lua flags=allow-oom\n"),
        ("== digest and 'DONE' or 'MISMATCH'", "and 'DONE'"),
        ("if redis.call('HEXISTS', K_live, parent) == 1 then return {'MISMATCH'} end", ""),
        ("if old[1] then", "if false then"),
        ("if old[1] ~= digest then return {'MISMATCH'} end", ""),
        ("if full then return {'FULL', full, n_live} end", ""),
    ),
    *_rows(
        "submit_many",
        ("#!lua\n", "#!lua flags=allow-oom\n"),
        ("if g[3] == '1' then return {'GONE'} end", ""),
        ("if done >= start + n then return {'DUP', done} end", ""),
        ("if done ~= start then return {'GAP', done} end", ""),
        ("if start + n == tonumber(g[1]) then", "if false then"),
        (", 'tokens', left)", ")"),
    ),
    # What goes to workers
    *_rows(
        "claim",
        ("if seq < last[1] then", "if false then"),
        ("if seq == last[1] then", "if false then"),
        ("rec[R_ST] == 'R' and rec[R_W] == wid and string.find", "rec[R_ST] == 'R' and string.find"),
        ("rec[R_ST] == 'R' and rec[R_W] == wid and string.find", "rec[R_W] == wid and string.find"),
        ("if is_paused then\n  redis", "if false then\n  redis"),
        ("if #payload > bytes_left and #taken > 1 then return false end", ""),
        ("if #payload > bytes_left and #taken > 1 then", "if #payload > bytes_left then"),
        ("rec[R_DL] > now and rec[R_QT] > now", "rec[R_DL] > now", "S9"),
        ("rec[R_DL] > now and rec[R_QT] > now", "rec[R_QT] > now"),
        ("if is_abandoned(rec, now) then", "if false then"),
        ("abandoned_at(rec) <= now", "abandoned_at(rec) <= now + 9000"),
        ("if not payload then", "if false then"),
        ("redis.call('HINCRBY', K_stat, 'fence', 1)", "1"),
        ("rec[R_ST0], rec[R_CT] = 'R', wid, 0, now", "rec[R_CT] = 'R', wid, now"),
        ("if is_alone and #taken > 1 or not take(w) then break end", "if not take(w) then break end"),
        ("if #taken > 1 then reply[5] = 1 end", ""),
        ("if is_idle then take_suspects() end", "take_suspects()"),
        ("math.max(1, math.floor(slots / 4))", "slots"),
        ("if not best or at < best_at then", "if not best then", "S9"),
        ("if tag > time_of(field) then", "if true then"),
        ("holder ~= wid and tonumber(till) > now", "false"),
        ("if suspects == 0 or is_idle then return suspects end", "if suspects == 0 then return 0 end"),
        ("(#taken > n or reply[5] == 1) and reply[4] > 0", "reply[4] > 0"),
        ("rec[R_DL] + 2000, rid", "rec[R_DL], rid"),
    ),
    *_rows(
        "beat",
        ("rec[R_ST] ~= 'R' or ", ""),
        ("rec[R_W] ~= wid or rec[R_TOK] ~= token", "rec[R_TOK] ~= token", "S5"),
        ("rec[R_W] ~= wid or rec[R_TOK] ~= token", "rec[R_W] ~= wid", "S5"),
        ("elseif is_abandoned(rec, now) then", "elseif false then"),
        ("and rec[R_ST0] == 0 then", "then"),
        ("if last[1] <= seq_seen then", "if true then"),
        ("and rec[R_CT] < now - 2000", ""),
        ("held[rid] = token", "held[rid] = true"),
        ("and held[last[i]] ~= rec[R_TOK] then", "and not held[last[i]] then"),
    ),
    *_rows(
        "emit",
        ("#!lua\n", "#!lua flags=allow-oom\n"),
        ("rec[R_ST] ~= 'R' or ", "", "S5"),
        ("local at = offset\n", "if #data < 9 then return true end\n  local at = offset\n", "S11"),
        ("at, data = offset + length(data), ''", "data = ''", "S11"),
        ("rec[R_W] ~= wid or ", ""),
        (" or rec[R_TOK] ~= token", ""),
        ("'MINID', '=', oldest, ", ""),
        ("if #data > TOLD_MAX then", "if false then"),
        ("if told == 0 and #reply[i] == 1 then", "if false then"),
    ),
    # What comes back
    *_rows(
        "nack",
        ("rec[R_ST] ~= 'R' or ", ""),
        ("rec[R_W] ~= wid or ", ""),
        (" or rec[R_TOK] ~= token", ""),
        ("rec[R_W], rec[R_TOK] = '', ''", "", "S5"),
        ("if rec[R_AT] >= max_attempts then", "if rec[R_AT] > max_attempts then"),
        ("if rec[R_CR] > max_crashes then", "if rec[R_CR] > max_crashes + 1 then", "S8"),
        ("rec[R_ST], rec[R_QT] = 'L', rec[R_DL]", "rec[R_ST] = 'L'"),
        ("delay_ms * 2 ^ (rec[R_AT] - 1), RETRY_MAX_MS", "delay_ms * 2 ^ (rec[R_AT] - 1), 1e9"),
    ),
    *_rows(
        "reap",
        ("'grace')) or 0) > now", "'grace')) or 0) > 1e15"),
        ("'(' .. int(now)", "int(now + 5000)"),
        ("rec[R_ST0] > 0 or ", ""),
        (" or rec[R_GR] >= max_idle_grants", ""),
        ("rec[R_CR] = rec[R_CR] + 1", ""),
        ("int(rec[R_CR] * 1e13 + rec[R_T0])", "int(rec[R_T0])"),
        ("rec[R_ST], rec[R_QT] = 'Q', rec[R_DL]\n  add_event(rec, kind", "rec[R_ST] = 'Q'\n  add_event(rec, kind"),
        ("redis.call('ZADD', K_when, rec[R_DL], rid)", ""),
    ),
    *_rows(
        "promote",
        ("'-inf', int(now)", "'-inf', int(now + 5000)"),
        ("if rec[R_TAG] < 0 then", "if false then"),
        ("if rec[R_TAG] < 0 then", "if true then"),
    ),
    # What ends
    *_rows(
        "finish",
        ("(o[2] == 'F' or o[2] == 'E') and o[16] ~= ''", "true"),
        ("and o[16] ~= ''", ""),
        ("o[5] == wid and ", ""),
        ("o[6] == token and ", ""),
        ("rec[R_W] ~= wid or ", ""),
        ("rec[R_TOK] ~= token or ", ""),
        (" or rec[R_ST] == 'K'", ""),
        ("if was ~= 'R' then", "if false then"),
        ("ARGV[6] == 'bad_record' and payload_of(rec)", "payload_of(rec)"),
        ("if entries then write", "if false then write"),
        ("if gone then write('HDEL', K_live", "if false then write('HDEL', K_live"),
        ("leave(K_when, rid)", ""),
        ("give_room(rec[R_TN], 1, rec[R_TK])", ""),
        ("if gone then write('HDEL', K_ten", "if false then write('HDEL', K_ten"),
        ("#outcome + #body <= inline_max", "true"),
        ("'NOMKSTREAM', 'MAXLEN', '~', OUT_MAX, '*', unpack(entry)", "'*', unpack(entry)"),
        ("if not n or done < n then return {} end", ""),
        ("return notice(parent, split(g[5]), outs, outcome, nil, 0)", "return {}", "S6"),
        ("if #rec[R_DEP] == 0 then", "if true then"),
        ("if rec[R_ST] == 'W' then", "if true then"),
        ("if not is_finished then", "if false then"),
        ("if needed_ms > tonumber(body_ttl_ms) then", "if false then"),
        ("if has_ready then ring() end", ""),
    ),
    *_rows(
        "end",
        ("if not why and rec[R_W] ~= ARGV[6] then return {'KEYS'} end", ""),
        ("if not outs[api] then return {'KEYS'} end", ""),
        ("if was == 'K' then return {'NOTDUE'} end", ""),
        ("if rec[R_DL] + 2000 > now then return {'NOTDUE'} end", ""),
        ("if math.min(rec[R_DL], rec[R_QT]) > now then return {'NOTDUE'} end", ""),
        ("elseif was ~= 'K' then", "elseif false then"),
        ("if code == 'client_gone' then state = 'C' end", ""),
        ("code == 'attempts_exhausted' and payload_of(rec)", "payload_of(rec)"),
        ("if was == 'R' and rec[R_W] ~= '' then", "if false then"),
        ("if #rec[R_DEP] > 0 then leave_predecessors(rid, rec) end", ""),
        ("redis.call('ZREM', K_later, rid)\n  elseif", "do end\n  elseif"),
    ),
    *_rows(
        "end_missing",
        ("if till and tonumber(till) > now then return {'NOTDUE'} end", ""),
        ("if done ~= start or start + lacking > n then return {'KEYS', done} end", ""),
        ("redis.call('HSET', grp, 'cancelled', 1)", ""),
        ("g[7] == '1' and 'C' or 'F'", "'F'"),
        ("give_room(g[4], lacking, unused)", "give_room(g[4], lacking, 0)"),
        ("if state == 'C' and redis.call('EXISTS', KEYS[NK + 2]) == 0 then", "if false then"),
    ),
    *_rows(
        "settle",
        ("outcome[5] ~= ARGV[3] or ", ""),
        (" or outcome[6] ~= ARGV[4] then", " then", "S5"),
        ("if outcome[16] ~= '' then return {'ALREADY'} end", ""),
    ),
    # Readers, letters, upkeep
    *_rows(
        "peek",
        ("if rec and rec[R_ST] == 'Q' then", "if rec then"),
        ("rank and before + rank or 0", "before + (rank or 0)"),
        ("for l = 0, rec[R_LN] - 1 do ahead", "for l = 0, rec[R_LN] do ahead"),
        ("ZCARD', K_ready_R) +", "ZCARD', K_ready_S) +"),
        ("if res then return {int(now), 'done'", "if false then return {int(now), 'done'"),
        ("if #g > 0 then", "if false then"),
    ),
    *_rows(
        "notify",
        ("if not outcome then return {'GONE'} end", "outcome = outcome or ''"),
        ("and #outcome + #body <= tonumber(ARGV[3])", ""),
        ("KEYS[NK + 3], 'NOMKSTREAM',", "KEYS[NK + 3],"),
    ),
    *_rows("drop", ("unpack(KEYS, NK + 1)", "KEYS[NK + 1]")),
    *_rows(
        "attach",
        ("if api ~= '' and join(rec[R_APIS]) then", "if join(rec[R_APIS]) then"),
        ("elseif api == '' and rec[R_HELD] == 1 then", "elseif rec[R_HELD] == 1 then"),
        ("elseif api == '' and rec[R_HELD] == 1 then", "elseif false then"),
        ("rec[R_HELD] = 0", ""),
        ("if not known then return 'GONE' end", "known = known or ''"),
        ("if api ~= '' and join(apis) then redis", "if join(apis) then redis"),
        ("from and from[1] or '-'", "'-'"),
        ("'+', 'COUNT', n)", "'+')"),
        ("if known == api then return false end", ""),
        ("if #apis >= 4 then table.remove(apis, 2) end", ""),
        ("if is_queued(rec) then", "if true then"),
    ),
    *_rows(
        "requeue_letter",
        ("if redis.call('EXISTS', KEYS[NK + 1]) == 1 then return {'DONE'} end", ""),
        ("if old then return", "if false then return"),
        ("return {'GONE'} end", "letter = {'1-1', {'i', '', 'p', '', 'o', ''}} end"),
        ("take_letter(letter)\ncount", "count"),
        ("if full then return {'FULL', full, n_live} end", ""),
    ),
    *_rows(
        "drop_letter",
        ("if not letter then return {'GONE'} end", "letter = letter or {'1-1', {'i', '', 'p', '', 'o', ''}}"),
        ("redis.call('XDEL', K_dlq, letter[1])", ""),
        ("int(0 - size_of(letter))", "int(size_of(letter))"),
        ("for i = 2, #letter[2], 2 do", "for i = 4, #letter[2], 2 do"),
    ),
    *_rows(
        "end",
    ),
    *_rows(
        "sweep",
        ("local again = now + 5000", "local again = now"),
        ("if is_held(rec) then\n", "if false then\n"),
        ("if is_held(rec) then\n", "if rec then\n"),
        ("and math.min(rec[R_DL], rec[R_QT]) > now", ""),
        ("and is_queued(rec) ", ""),
    ),
    *_rows(
        "prune",
        ("< now - tonumber(ARGV[2])", "< now"),
        ("redis.call('HEXISTS', K_ten, 'r:' .. tenant) == 0", "true"),
        ("if redis.call('HLEN', K_live) > 0 then", "if false then"),
        ("if redis.call('ZCARD', K_resv) == 0 then", "if true then"),
    ),
]  # fmt: skip
