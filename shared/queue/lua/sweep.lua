-- sweep: hand out ids that are due for `end` (time over, or K), and lists whose reservation ran out or that are still to be
-- cancelled; at most n of each.
-- KEYS: when resv flags
-- ARGV: now n
-- Replies: {{rid...}, {parent...}}; an id is offered again in 5 s until it is ended, a list each time
-- Moves: none.
-- FLAGS: allow-oom
-- USES: prelude
local now = queue_now()
local due = redis.call('ZRANGEBYSCORE', K_when, '-inf', int(now), 'LIMIT', 0, ARGV[2])
for _, rid in ipairs(due) do redis.call('ZADD', K_when, int(now + 5000), rid) end
return {due, redis.call('ZRANGEBYSCORE', K_resv, '-inf', int(now), 'LIMIT', 0, ARGV[2])}
