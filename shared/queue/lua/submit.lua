-- submit: accept one request, or say why not.
-- KEYS: in live ready:0 ready:1 ready:2 ready:R ready:S later when tags ten bell flags stat deps | res:<rid> grp:<rid> (res:<pred> body:<pred>)... of each it depends on
-- ARGV: now rid payload meta caps; meta = {lane, tenant, tokens, timeout_ms, queue_timeout_ms, api, delivery, digest,
--       depends, webhook, traceparent, not_before_ms, weight, held, wants_position (0: not)},
--       caps = {requests, tokens, tenant requests, tenant tokens}, 0 = none
-- Replies: {OK, position, at} {DUP, position, at} {DONE} {MISMATCH} {FULL, which, queued} {UNKNOWN, pred} {CROWDED, pred};
--          position -1: not queued yet, or not wanted; UNKNOWN: no single request of this tenant, or its answer is gone; CROWDED: 64 wait for it
-- Moves: nothing to Q; to W while a predecessor has not ended, to L before its time, to K where a predecessor did not
--        finish. A second run finds the record (DUP) or the outcome (DONE).
-- FLAGS: deny-oom
-- USES: prelude numbers room ready accept predecessors
local now = queue_now()
local rid, payload = ARGV[2], ARGV[3]
local m, caps = cmsgpack.unpack(ARGV[4]), cmsgpack.unpack(ARGV[5])
local res = redis.call('GET', KEYS[NK + 1])
if res then
  if cmsgpack.unpack(res)[12] ~= m[8] then return {'MISMATCH'} end
  return {'DONE'}
end
local old, why = load_record(rid)
-- A record that cannot be read, or not by this release, says nothing of its body.
if why then return {'MISMATCH'} end
if old then
  if old[R_DG] ~= m[8] then return {'MISMATCH'} end
  return {'DUP', position(rid, old), int(old[R_EV][1][1])}
end
-- The id of a list that has not ended is no single request's.
if redis.call('EXISTS', KEYS[NK + 2]) == 1 then return {'MISMATCH'} end
local refusal, awaited, is_failed = look_at(m[9], m[2], KEYS, NK + 3)
if refusal then return refusal end
local full, n_live = take_room(m[2], 1, m[3], caps)
if full then return {'FULL', full, n_live} end
local rec = new_record(now, m, '', payload, rid, awaited, is_failed)
if not is_failed then depend(rid, m[9], awaited, KEYS, NK + 3, m[4]) end
count('submitted')
ring()
-- The first one of all needs no look at the lanes.
return {'OK', n_live == 1 and rec[R_ST] == 'Q' and 0 or m[15] ~= 0 and position(rid, rec) or -1, int(wall)}
