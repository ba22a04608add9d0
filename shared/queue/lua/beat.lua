-- beat: a worker says what it holds; leases are renewed, and it learns what it has lost.
-- KEYS: live lease when apis wk flags
-- ARGV: now wid lease_ms seq_seen info (rid token started)...
-- Replies: {now, paused, draining, {lost...}, {orphan rid, token, ...}}; orphans: granted to it, seen, yet not held
-- Moves: R to K where its caller's api has gone; else none. Marks `started`, from when a lost lease counts as a crash.
--        Twice is as once.
-- FLAGS: allow-oom
-- USES: prelude readers
local now = queue_now()
local wid, lease_ms, seq_seen = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local lost, orphans, held = {}, {}, {}
for i = 6, #ARGV, 3 do
  local rid, token = ARGV[i], ARGV[i + 1]
  held[rid] = token
  local rec = load_record(rid)
  if not rec or rec[R_ST] ~= 'R' or rec[R_W] ~= wid or rec[R_TOK] ~= token then
    lost[#lost + 1] = rid
  elseif is_abandoned(rec, now) then
    redis.call('ZREM', K_lease, rid)
    abandon(rid, rec, now)
    lost[#lost + 1] = rid
  else
    redis.call('ZADD', K_lease, now + lease_ms, rid)
    if ARGV[i + 2] == '1' and rec[R_ST0] == 0 then
      rec[R_ST0] = now
      add_event(rec, 'started', wid)
      save_record(rid, rec)
    end
  end
end
local last = redis.call('HGET', K_wk, 'c:' .. wid)
if last then
  last = cmsgpack.unpack(last)
  if last[1] <= seq_seen then
    for i = 2, #last do
      local rec = load_record(last[i])
      if rec and held[last[i]] ~= rec[R_TOK] then
        -- Two seconds of grace: the grant may be on its way from the loop to the beat.
        if rec[R_ST] == 'R' and rec[R_W] == wid and rec[R_CT] < now - 2000
          and string.find(rec[R_TOK], last[1] .. '-', 1, true) == 1 then
          orphans[#orphans + 1] = last[i]
          orphans[#orphans + 1] = rec[R_TOK]
        end
      end
    end
  end
end
redis.call('HSET', K_wk, 'i:' .. wid, ARGV[5], 'b:' .. wid, int(now))
local f = redis.call('HMGET', K_flags, 'paused', 'drain:' .. wid)
return {int(now), f[1] == '1' and 1 or 0, f[2] and 1 or 0, lost, orphans}
