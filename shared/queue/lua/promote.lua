-- promote: requests whose delay is over become ready (at most n).
-- KEYS: live ready:0 ready:1 ready:2 ready:S later when tags bell flags
-- ARGV: now n
-- Replies: {moved, more}
-- Moves: L to Q, a suspect to S again. Twice only goes on. One of a later release is looked at again in a second.
-- FLAGS: allow-oom
-- USES: prelude numbers ready
local now = queue_now()
local n = tonumber(ARGV[2])
local due = redis.call('ZRANGEBYSCORE', K_later, '-inf', int(now), 'LIMIT', 0, n)
for _, rid in ipairs(due) do
  local rec, why = load_record(rid)
  if why == 'NEWER' then
    redis.call('ZADD', K_later, now + 1000, rid)
  else
    redis.call('ZREM', K_later, rid)
  end
  if why == 'BAD' then redis.call('ZADD', K_when, now, rid) end
  if rec and rec[R_ST] == 'L' then
    add_event(rec, 'promoted', '')
    if rec[R_CR] > 0 then
      rec[R_ST] = 'Q'
      redis.call('ZADD', K_ready_S, suspect_rank(rec), rid)
    else
      make_ready(rid, rec, now)
    end
    save_record(rid, rec)
  end
end
if #due > 0 then ring() end
return {#due, #due == n and 1 or 0}
