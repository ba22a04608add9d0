-- promote: requests whose delay is over become ready (at most n).
-- KEYS: live ready:0 ready:1 ready:2 later bell flags
-- ARGV: now n
-- Replies: {moved, more}
-- Moves: L to Q. Twice only goes on.
-- FLAGS: allow-oom
-- USES: prelude
local now = queue_now()
local LANES = {[0] = K_ready_0, [1] = K_ready_1, [2] = K_ready_2}
local n = tonumber(ARGV[2])
local due = redis.call('ZRANGEBYSCORE', K_later, '-inf', int(now), 'LIMIT', 0, n)
for _, rid in ipairs(due) do
  redis.call('ZREM', K_later, rid)
  local rec = load_record(rid)
  if rec and rec[R_ST] == 'L' then
    rec[R_ST] = 'Q'
    add_event(rec, 'promoted', '')
    save_record(rid, rec)
    redis.call('ZADD', LANES[rec[R_LN]], real(rec[R_TAG]), rid)
  end
end
if #due > 0 then redis.call('ZADD', K_bell, int(now), 'w') end
return {#due, #due == n and 1 or 0}
