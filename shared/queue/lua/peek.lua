-- peek: what is known of an id, in one step.
-- KEYS: live ready:0 ready:1 ready:2 ready:R ready:S flags | res:<rid> grp:<rid>
-- ARGV: now rid
-- Replies: {now, kind, value, position, the server's clock}; kind live (record), done (outcome), group (flat hash), none
-- Moves: none.
-- FLAGS: allow-oom no-writes
-- USES: prelude ready
local now = queue_now()
local rid = ARGV[2]
local raw = redis.call('HGET', K_live, rid)
if raw then
  local rec = parse_record(raw)
  local ahead = -1
  if rec and rec[R_ST] == 'Q' then
    local before, rank = ahead_of(rid, rec)
    ahead = rank and before + rank or 0
  end
  return {int(now), 'live', raw, ahead, int(wall)}
end
local res = redis.call('GET', KEYS[NK + 1])
if res then return {int(now), 'done', res, -1, int(wall)} end
local g = redis.call('HGETALL', KEYS[NK + 2])
if #g > 0 then return {int(now), 'group', g, -1, int(wall)} end
return {int(now), 'none', '', -1, int(wall)}
