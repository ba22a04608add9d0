-- emit: pieces of running texts, told to who reads along and kept for who comes later.
-- KEYS: live | part:<rid>... (one for each piece) out:<api>...
-- ARGV: now wid apis (rid token offset data)...; offset = code points of this grant's text before it
-- Replies: {{OK | NOBODY | LOST, missed api...}...} one for each piece; NOBODY: the stream of no reader is there
-- Moves: none. What the part holds already changes nothing. Without data: only how far the text is, told and not kept.
-- FLAGS: deny-oom
-- USES: prelude
local wid, n, outs = ARGV[2], (#ARGV - 3) / 4, {}
for i, api in ipairs(split(ARGV[3])) do outs[api] = KEYS[NK + n + i] end
-- Code points, so at most 1 MiB of any text. A longer piece is told as a gap, which sends the reader to the part.
local PART_MAX, TOLD_MAX = 262144, 1024

local function length(text)
  local _, continued = string.gsub(text, '[\128-\191]', '')
  return #text - continued
end

-- False where the part has it already: its ids only rise. Older grants go with the first piece of a new one, and what is
-- too far back. A part that somebody has damaged keeps nothing, which costs those who come later a part of the text.
local function keep(part, grants, token, offset, data)
  local oldest = grants .. '-' .. int(math.max(0, offset - PART_MAX))
  local id = redis.pcall('XADD', part, 'MINID', '=', oldest, grants .. '-' .. int(offset + 1), 't', token, 'd', data)
  return type(id) == 'string' or not string.find(id.err, 'equal or smaller', 1, true)
end

local function tell(out, rid, grants, token, offset, data)
  local at = offset
  if #data > TOLD_MAX then at, data = offset + length(data), '' end
  return redis.call('XADD', out, 'NOMKSTREAM', 'MAXLEN', '~', OUT_MAX, '*', 'i', rid, 'c', grants .. '/' .. int(at),
    't', token, 'd', data)
end

local reply = {}
for i = 1, n do
  local rid, token, offset, data = ARGV[4 * i], ARGV[4 * i + 1], tonumber(ARGV[4 * i + 2]), ARGV[4 * i + 3]
  local rec, part = load_record(rid), KEYS[NK + i]
  if not rec or rec[R_ST] ~= 'R' or rec[R_W] ~= wid or rec[R_TOK] ~= token then
    reply[i] = {'LOST'}
  else
    local grants, told = rec[R_GR], 0
    local fresh = data == '' or keep(part, grants, token, offset, data)
    reply[i] = {'OK'}
    for _, api in ipairs(rec[R_APIS]) do
      local out = outs[api]
      if not out then
        table.insert(reply[i], api)
      elseif not fresh or tell(out, rid, grants, token, offset, data) then
        told = told + 1
      end
    end
    if told == 0 and #reply[i] == 1 then reply[i][1] = 'NOBODY' end
  end
end
return reply
