-- promote: requests whose delay is over become ready (at most n).
-- KEYS: live ready:0 ready:1 ready:2 ready:S later when bell flags
-- ARGV: now n
-- Replies: {moved, more}
-- Moves: L to Q, a suspect to S again. Twice only goes on. One of a later release is looked at again in a second.
-- FLAGS: allow-oom
-- USES: prelude
local now = queue_now()
local LANES = {[0] = K_ready_0, [1] = K_ready_1, [2] = K_ready_2}
local n = tonumber(ARGV[2])
local due = redis.call('ZRANGEBYSCORE', K_later, '-inf', int(now), 'LIMIT', 0, n)
for _, rid in ipairs(due) do
  local rec, why = load_record(rid)
  if why == 'NEWER' then
    redis.call('ZADD', K_later, int(now + 1000), rid)
  else
    redis.call('ZREM', K_later, rid)
  end
  if why == 'BAD' then redis.call('ZADD', K_when, int(now), rid) end
  if rec and rec[R_ST] == 'L' then
    rec[R_ST] = 'Q'
    add_event(rec, 'promoted', '')
    save_record(rid, rec)
    if rec[R_CR] > 0 then
      redis.call('ZADD', K_ready_S, suspect_rank(rec), rid)
    else
      redis.call('ZADD', LANES[rec[R_LN]], real(rec[R_TAG]), rid)
    end
  end
end
if #due > 0 then redis.call('ZADD', K_bell, int(now), 'w') end
return {#due, #due == n and 1 or 0}
