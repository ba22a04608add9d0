-- prune: forget workers that have been silent long past their lease, and idle tenants' virtual times.
-- KEYS: wk lease live tags ready:0 ready:1 ready:2 flags
-- ARGV: now silent_ms
-- Replies: {forgotten}
-- Moves: none. A worker that comes back announces itself with its next beat.
-- FLAGS: allow-oom
-- USES: prelude
local now = queue_now()
local gone = 0
local all = redis.call('HGETALL', K_wk)
for i = 1, #all, 2 do
  if string.sub(all[i], 1, 2) == 'b:' and tonumber(all[i + 1]) < now - tonumber(ARGV[2]) then
    local wid = string.sub(all[i], 3)
    redis.call('HDEL', K_wk, 'b:' .. wid, 'i:' .. wid, 'c:' .. wid)
    redis.call('HDEL', K_flags, 'drain:' .. wid)
    gone = gone + 1
  end
end
if redis.call('HLEN', K_live) == 0 then redis.call('DEL', K_tags) end
return {gone}
