-- reap: take back requests whose lease is over (at most n).
-- KEYS: live ready:R ready:S lease when bell flags stat
-- ARGV: now n max_crashes max_idle_grants
-- Replies: {moved, more, {rid...}}; more 1: run again; the ids are those that are queued again, without the dead
-- Moves: R to Q: started ones as suspects (crashes+1) or to K, others as if nothing had been. Owner and token stay, so
--        a late finish before the next claim still counts. Nothing happens during the clock's grace. Twice only goes on.
--        One of a later release is looked at again in a second.
-- FLAGS: allow-oom
-- USES: prelude numbers requeue
local now = queue_now()
local n, max_crashes, max_idle_grants = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
if (tonumber(redis.call('HGET', K_flags, 'grace')) or 0) > now then return {0, 0, {}} end
local due = redis.call('ZRANGEBYSCORE', K_lease, '-inf', '(' .. int(now), 'LIMIT', 0, n)
local back = {}
for _, rid in ipairs(due) do
  local rec, why = load_record(rid)
  if why == 'NEWER' then
    redis.call('ZADD', K_lease, now + 1000, rid)
  elseif not rec or rec[R_ST] ~= 'R' then
    redis.call('ZREM', K_lease, rid)
    if why == 'BAD' then redis.call('ZADD', K_when, now, rid) end
  elseif rec[R_ST0] > 0 or rec[R_GR] >= max_idle_grants then
    -- Granted that often without once being started, it is treated as what kills its workers.
    if crash(rid, rec, now, 'lease lost by ' .. rec[R_W], max_crashes) == 'OK' then back[#back + 1] = rid end
  else
    requeue(rid, rec, now, 'reclaimed', 'lease lost by ' .. rec[R_W])
    back[#back + 1] = rid
  end
end
if #due > 0 then ring() end
return {#due, #due == n and 1 or 0, back}
