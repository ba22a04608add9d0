-- prune: forget workers that have been silent long past their lease, and the virtual times of tenants with nothing live.
-- KEYS: in live tags ten resv wk flags
-- ARGV: now silent_ms
-- Replies: {forgotten}
-- Moves: none. A worker that comes back announces itself with its next beat. A run looks at some hundreds of tenants, and
--        the next goes on from there; where nothing is live at all, what unreadable records have left behind goes too.
-- FLAGS: allow-oom
-- USES: prelude
local now = queue_now()
local TENANTS_A_RUN = 256
local gone = 0
local all, beats = redis.call('HGETALL', K_wk), {}
for i = 1, #all, 2 do
  if string.sub(all[i], 1, 2) == 'b:' then beats[string.sub(all[i], 3)] = tonumber(all[i + 1]) end
end
for i = 1, #all, 2 do
  local kind, wid = string.sub(all[i], 1, 2), string.sub(all[i], 3)
  if kind == 'b:' and beats[wid] < now - tonumber(ARGV[2]) then
    redis.call('HDEL', K_wk, 'b:' .. wid, 'i:' .. wid, 'c:' .. wid)
    redis.call('HDEL', K_flags, 'drain:' .. wid)
    gone = gone + 1
  elseif kind == 'c:' and not beats[wid] then
    -- It claimed and died before its first beat: its silence begins to count now.
    redis.call('HSET', K_wk, 'b:' .. wid, int(now))
  end
end

-- Who has nothing live has had its turns, or has ended what it had queued. Being ahead of the lane for the latter would
-- keep it waiting for work that was never done.
local function forget_tenants()
  local cursor = redis.call('HGET', K_flags, 'tags') or '0'
  local page = redis.call('HSCAN', K_tags, cursor, 'COUNT', TENANTS_A_RUN)
  for i = 1, #page[2], 2 do
    local tenant = string.match(page[2][i], '^f%d:(.*)$')
    if tenant and redis.call('HEXISTS', K_ten, 'r:' .. tenant) == 0 then redis.call('HDEL', K_tags, page[2][i]) end
  end
  if page[1] == '0' then
    redis.call('HDEL', K_flags, 'tags')
  else
    redis.call('HSET', K_flags, 'tags', page[1])
  end
end

if redis.call('HLEN', K_live) > 0 then
  forget_tenants()
else
  redis.call('DEL', K_tags)
  redis.call('XTRIM', K_in, 'MAXLEN', 0)
  if redis.call('ZCARD', K_resv) == 0 then redis.call('DEL', K_ten) end
end
return {gone}
