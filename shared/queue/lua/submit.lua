-- submit: accept one request, or say why not.
-- KEYS: in live ready:0 ready:1 ready:2 ready:R ready:S later when tags ten bell flags stat | res:<rid> grp:<rid>
-- ARGV: now rid payload meta caps; meta = {lane, tenant, tokens, timeout_ms, queue_timeout_ms, api, delivery, digest,
--       depends, webhook, traceparent, not_before_ms}, caps = {requests, tokens, tenant requests, tenant tokens}, 0 = none
-- Replies: {OK, position, at} {DUP, position, at} {DONE} {MISMATCH} {FULL, which, queued}
-- Moves: nothing to Q (or L). A second run finds the record (DUP) or the outcome (DONE).
-- FLAGS: deny-oom
-- USES: prelude room accept
local now = queue_now()
local rid, payload = ARGV[2], ARGV[3]
local m, caps = cmsgpack.unpack(ARGV[4]), cmsgpack.unpack(ARGV[5])
local res = redis.call('GET', KEYS[NK + 1])
if res then
  if cmsgpack.unpack(res)[12] ~= m[8] then return {'MISMATCH'} end
  return {'DONE'}
end
local old = load_record(rid)
if old then
  if old[R_DG] ~= m[8] then return {'MISMATCH'} end
  return {'DUP', position(rid, old[R_LN]), int(old[R_EV][1][1])}
end
-- The id of a list that has not ended is no single request's.
if redis.call('EXISTS', KEYS[NK + 2]) == 1 then return {'MISMATCH'} end
local full, n_live = take_room(m[2], 1, m[3], caps)
if full then return {'FULL', full, n_live} end
local rec = new_record(now, m, '', payload, rid)
redis.call('HINCRBY', K_stat, 'submitted', 1)
ring(now)
return {'OK', n_live > 1 and position(rid, rec[R_LN]) or 0, int(wall)}
