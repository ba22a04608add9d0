-- stats: the queue's figures and its workers, in one step.
-- KEYS: in live ready:0 ready:1 ready:2 ready:R ready:S later lease ten wk flags stat resv
-- ARGV: now
-- Replies: {now, {ready 0, 1, 2, R, S}, later, leased, live, tokens, oldest t0 or 0, paused, stat hash, wk hash}
-- Moves: none.
-- FLAGS: allow-oom no-writes
-- USES: prelude
local now = queue_now()
local sets, depth, oldest = {K_ready_0, K_ready_1, K_ready_2, K_ready_R, K_ready_S}, {}, 0
for i, set in ipairs(sets) do
  depth[i] = redis.call('ZCARD', set)
  local head = redis.call('ZRANGE', set, 0, 0)[1]
  local rec = head and load_record(head)
  if rec and (oldest == 0 or rec[R_T0] < oldest) then oldest = rec[R_T0] end
end
return {int(now), depth, redis.call('ZCARD', K_later), redis.call('ZCARD', K_lease), redis.call('HLEN', K_live),
  redis.call('HGET', K_ten, 't') or '0', int(oldest), redis.call('HGET', K_flags, 'paused') == '1' and 1 or 0,
  redis.call('HGETALL', K_stat), redis.call('HGETALL', K_wk)}
