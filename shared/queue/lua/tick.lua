-- tick: keep the queue clock, and (for an api) its result stream and the word that it is there.
-- KEYS: flags sys apis | out:<api> (an api only)
-- ARGV: now lease_ms api last_id (an api only: its name, and the last entry that it has read)
-- Replies: {now, paused, system prompt version, created}; created 1: the result stream was gone and is new
-- Moves: none. Twice is as once.
-- FLAGS: allow-oom
-- USES: prelude
local now, raw, clk, off, is_paused = queue_now()
local step = raw - off - clk
if clk == 0 then
  redis.call('HSET', K_flags, 'clk', int(raw), 'off', 0, 'layout', 1)
elseif step > 5000 or step < -1000 then
  -- A pause, a restart or a step of the server's clock: time goes on from where it stood.
  now = clk + 1000
  redis.call('HSET', K_flags, 'clk', int(now), 'off', int(raw - now), 'grace', int(now + 2 * tonumber(ARGV[2])))
elseif step > 0 then
  redis.call('HSET', K_flags, 'clk', int(now))
end

local function forget_silent_apis()
  local all = redis.call('HGETALL', K_apis)
  for i = 1, #all, 2 do
    if tonumber(all[i + 1]) < now - 10 * ABSENT_MS then redis.call('HDEL', K_apis, all[i]) end
  end
end

local created = 0
if #KEYS > NK then
  local out = KEYS[NK + 1]
  redis.call('HSET', K_apis, ARGV[3], int(now))
  if redis.call('EXISTS', out) == 0 then
    created = 1
    forget_silent_apis()
    local ms, n = string.match(ARGV[4], '^(%d+)-(%d+)$')
    local id = int(math.max(tonumber(ms), raw)) .. '-' .. (tonumber(ms) >= raw and int(tonumber(n) + 1) or '1')
    redis.call('XADD', out, id, 'hello', '1')
  end
  -- Its one reader has read so far and does not come back for it.
  redis.call('XTRIM', out, 'MINID', ARGV[4])
  redis.call('PEXPIRE', out, 60000)
end
return {int(now), is_paused and 1 or 0, redis.call('HGET', K_sys, 'v') or '0', created}
