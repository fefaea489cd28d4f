-- Synergy's part of job_submit.lua: checks `#SYNERGY key=value` lines at sbatch and stamps them into AdminComment.
--
-- Loaded by the hook in job_submit.hook.lua. Runs in Lua 5.1 to 5.4 (Debian's Slurm has 5.1) under slurmctld's locks, so it
-- does no I/O but one small read of the daemon's heartbeat file and one of /dev/urandom. The grammar and every text come from synergy_grammar.lua, which
-- is made from synergyd/slurm/directives/grammar.py; synergyd/slurm/directives/directive.py reads the same language.
--
-- Jobs without a #SYNERGY line are never touched or refused. A job with one is refused when the line is wrong. It fails open:
-- when this module itself fails, the job is submitted as its user wrote it, and one line says so.

local M = {}

local folder = debug.getinfo(1, "S").source:match("^@(.*/)") or "./"
local G = dofile(folder .. "synergy_grammar.lua")

local PREFIX = "#SYNERGY"
local UNSET = 65534 -- NO_VAL16; NO_VAL and INFINITE are above it
local NO_TIME = 4294967294 -- NO_VAL: a begin time that was not given
local MAX_NOTE = 200

local by_name, names = {}, {}
for _, key in ipairs(G.keys) do
  by_name[key.name] = key
  if key.kind ~= "retired" then names[#names + 1] = key.name end
end

local settings = {state_dir = nil, heartbeat = nil, grace_s = nil, heartbeat_max_age_s = 180, refuse_late = false}

local kinds_of_options = {
  state_dir = "string", heartbeat = "string", grace_s = "number", heartbeat_max_age_s = "number", refuse_late = "boolean",
}

-- configure{state_dir = "/var/lib/synergy", heartbeat = FILE, grace_s = N, heartbeat_max_age_s = N}; returns the module.
-- heartbeat: the daemon's file, by default state_dir/heartbeat. grace_s: seconds by which a new job is put off so that the
-- daemon can choose its size; by default the daemon says it in its heartbeat. refuse_late: true to refuse a job whose deadline=
-- can't be met whatever happens, which is otherwise only told to its user.
function M.configure(options)
  for name, value in pairs(options) do
    local kind = kinds_of_options[name]
    if not kind then
      error("synergy.configure: unknown option " .. tostring(name))
    elseif type(value) ~= kind then
      error("synergy.configure: " .. name .. " must be a " .. kind)
    end
    settings[name] = value
  end
  return M
end

-- Errors ---------------------------------------------------------------------------------------------------------------

-- A mistake of the user's: caught by refusal(), told apart from a failure of this module, which is a string.
local function wrong(code, values, keys)
  error({code = code, values = values or {}, keys = keys or {}}, 0)
end

local function message(line, mistake)
  local function fill(text)
    return (text:gsub("{([a-z]+)}", function(name) return tostring(mistake.values[name]) end))
  end
  local texts = G.messages[mistake.code]
  return "#SYNERGY in script line " .. line .. ": " .. fill(texts[1]) .. "; " .. fill(texts[2])
end

-- A stranger's bytes as printable ASCII, cut.
local function show(value)
  local shown = value:sub(1, G.shown):gsub("[^ -~]", function(c) return string.format("\\x%02x", c:byte()) end)
  return #value > G.shown and shown .. "..." or shown
end

-- Words of a line ------------------------------------------------------------------------------------------------------

-- The code point at byte `at` and its length; nil where the bytes are not UTF-8.
local function code_point(text, at)
  local first = text:byte(at)
  if first < 0x80 then return first, 1 end
  local length, point, least
  if first >= 0xC2 and first <= 0xDF then
    length, point, least = 2, first - 0xC0, 0x80
  elseif first >= 0xE0 and first <= 0xEF then
    length, point, least = 3, first - 0xE0, 0x800
  elseif first >= 0xF0 and first <= 0xF4 then
    length, point, least = 4, first - 0xF0, 0x10000
  else
    return nil
  end
  for i = at + 1, at + length - 1 do
    local byte = text:byte(i)
    if not byte or byte < 0x80 or byte > 0xBF then return nil end
    point = point * 64 + byte - 0x80
  end
  if point < least or point > 0x10FFFF or (point >= 0xD800 and point <= 0xDFFF) then return nil end
  return point, length
end

-- The column of the first byte that no value may hold, nil if there is none.
local function bad_column(line)
  local at = line:find("[^ -~\t]")
  while at do
    local point, length = code_point(line, at)
    if not point then return at end
    for i = 1, #G.forbidden do
      local range = G.forbidden[i]
      if point <= range[2] then
        if point >= range[1] and point ~= 9 then return at end
        break
      end
    end
    at = line:find("[^ -~\t]", at + length)
  end
  return nil
end

-- The {key, value} pairs of a line from byte `at` on.
local function words(line, at)
  if #line > G.max_line then wrong("long_line", {max = G.max_line}) end
  local column = bad_column(line)
  if column then wrong("character", {column = column}) end
  local found = {}
  while true do
    at = line:find("[^ \t]", at)
    if not at or line:sub(at, at) == "#" then return found end
    local stop = line:find("[ \t=]", at) or #line + 1
    if line:sub(stop, stop) ~= "=" or stop == at then
      wrong("no_value", {word = show(line:match("^[^ \t]*", at))})
    end
    local key, value = line:sub(at, stop - 1), nil
    at = stop + 1
    local quote = line:sub(at, at)
    if quote == '"' or quote == "'" then
      local close = line:find(quote, at + 1, true)
      if not close then wrong("unclosed", {key = show(key)}) end
      value = line:sub(at + 1, close - 1)
      at = close + 1
      if line:find("^[^ \t]", at) then wrong("after_quote", {key = show(key)}) end
    else
      value = line:match("^[^ \t]*", at)
      at = at + #value
      if value == "" then wrong("no_value", {word = show(key .. "=")}) end
      if value:find("[\"']") then wrong("inner_quote", {key = show(key), value = show(value)}) end
    end
    found[#found + 1] = {key, value}
  end
end

local function distance(a, b)
  local row = {}
  for j = 0, #b do row[j] = j end
  for i = 1, #a do
    local diagonal = row[0]
    row[0] = i
    for j = 1, #b do
      local above = row[j]
      local change = a:byte(i) == b:byte(j) and diagonal or diagonal + 1
      row[j] = math.min(above + 1, row[j - 1] + 1, change)
      diagonal = above
    end
  end
  return row[#b]
end

local function nearest(word)
  if #word > 40 then return nil end
  local best, least = nil, 3
  local folded = word:lower():gsub("-", "_")
  for _, name in ipairs(names) do
    local d = distance(folded, name)
    if d < least and d < #name then best, least = name, d end
  end
  return best
end

local function key_of(name)
  local key = by_name[name]
  if key then return key end
  local near = nearest(name)
  if near then wrong("nearest", {word = show(name), nearest = near}) end
  return wrong("unknown", {word = show(name), known = table.concat(names, ", ")})
end

-- Values ---------------------------------------------------------------------------------------------------------------

local function integer(value)
  return string.format("%d", tonumber(value))
end

local function whole(value, key)
  if not value:find("^[0-9]+$") or #value > 9 then return nil end
  local number = tonumber(value)
  return number >= key.low and number <= key.high and number or nil
end

-- Days from 1970-01-01 to a day of the Gregorian calendar.
local function days(year, month, day)
  if month <= 2 then year, month = year - 1, month + 12 end
  return 365 * year + math.floor(year / 4) - math.floor(year / 100) + math.floor(year / 400)
    + math.floor((153 * (month - 3) + 2) / 5) + day - 719469
end

local function date(value)
  local year, month, day, hour, minute, rest =
    value:match("^([0-9][0-9][0-9][0-9])%-([0-9][0-9])%-([0-9][0-9])T([0-9][0-9]):([0-9][0-9])(.*)$")
  if not year then return nil end
  local second, zone = rest:match("^:([0-9][0-9])(.*)$")
  second, zone = tonumber(second or 0), zone or rest
  year, month, day, hour, minute = tonumber(year), tonumber(month), tonumber(day), tonumber(hour), tonumber(minute)
  if year < 2000 or year > 2099 or month < 1 or month > 12 or hour > 23 or minute > 59 or second > 59 then return nil end
  local next_year, next_month = year, month + 1
  if next_month == 13 then next_year, next_month = year + 1, 1 end
  if day < 1 or day > days(next_year, next_month, 1) - days(year, month, 1) then return nil end
  if zone == "" then
    return os.time({year = year, month = month, day = day, hour = hour, min = minute, sec = second})
  end
  local shift = 0
  if zone ~= "Z" then
    local sign, hours, minutes = zone:match("^([+-])([0-9][0-9]):([0-9][0-9])$")
    if not sign or tonumber(hours) > 14 or tonumber(minutes) > 59 then return nil end
    shift = (tonumber(hours) * 60 + tonumber(minutes)) * (sign == "+" and 60 or -60)
  end
  return days(year, month, day) * 86400 + hour * 3600 + minute * 60 + second - shift
end

-- One checker per kind: the canonical text of a value, or nil where it is wrong.
local kinds = {}

function kinds.text(value, key, named)
  if #value < 1 or #value > key.max_bytes or value:find("\t", 1, true) then return nil end
  if value:sub(1, 1) == "-" then wrong("dash", named) end
  if value:find("[$`]") or value:sub(1, 1) == "~" then wrong("expand", named) end
  return value
end

kinds.path = kinds.text

function kinds.loop(value, key)
  if #value > key.max_bytes then return nil end
  local batch, resume = value:match("^([^,]*),resume:([^, \t$`]+)$")
  batch = batch or value
  local total = batch:match("^global:([1-9][0-9]*)$")
  if total and #total <= 9 then return value end
  return batch:find("^gpu:%-?%-?[A-Za-z_][A-Za-z0-9_.-]*$") and value or nil
end

function kinds.int(value, key)
  local number = whole(value, key)
  return number and integer(number)
end

function kinds.range(value, key, named)
  local low, high = value:match("^([^:]*):(.*)$")
  local first = whole(low or value, key)
  local second = whole(high or value, key)
  if not first or not second then return nil end
  if first > second then wrong("order", named) end
  return first == second and integer(first) or integer(first) .. ":" .. integer(second)
end

function kinds.names(value)
  local count, seen = 0, {}
  for name in (value .. ","):gmatch("([^,]*),") do
    count = count + 1
    if count > G.max_names or #name > G.max_name or seen[name] then return nil end
    if not name:find("^[A-Za-z0-9_][A-Za-z0-9_.-]*$") then return nil end
    seen[name] = true
  end
  return value
end

function kinds.words(value, key)
  local seen, kept = {}, {}
  for name in (value .. ","):gmatch("([^,]*),") do
    if not (key.words[name] or key.retired_words[name]) or seen[name] then return nil end
    seen[name] = true
    if key.words[name] then kept[#kept + 1] = name end
  end
  return #kept > 0 and table.concat(kept, ",") or key.default
end

-- At most 6 places, compared in millionths, so that both readers agree to the last digit.
function kinds.float(value, key)
  local ones, places = value:match("^([0-9]+)$"), ""
  if not ones then ones, places = value:match("^([0-9]+)%.([0-9]+)$") end
  if not ones or #ones > 9 or #places > 6 then return nil end
  local millionths = tonumber(ones .. places .. ("0"):rep(6 - #places))
  if millionths < key.low or millionths > key.high then return nil end
  ones, places = ones:gsub("^0+", ""), places:gsub("0+$", "")
  if ones == "" then ones = "0" end
  return places == "" and ones or ones .. "." .. places
end

function kinds.flag(value)
  return (value == "yes" or value == "no") and value or nil
end

function kinds.retired(_, key)
  return key.default
end

function kinds.time(value, key)
  local seconds
  if value:find("^[0-9]+$") and #value <= 10 then seconds = tonumber(value) else seconds = date(value) end
  if not seconds or seconds < key.low or seconds > key.high then return nil end
  return integer(seconds)
end

function kinds.walltime(value, key)
  if value == "stop" then return value end
  if value == "continue" then return "continue:" .. integer(G.continues) end
  local times = value:match("^continue:(.*)$")
  local number = times and whole(times, key)
  return number and "continue:" .. integer(number)
end

local function check(key, value)
  local named = {key = key.name, value = show(value), takes = key.takes}
  return kinds[key.kind](value, key, named) or wrong("bad", named)
end

-- The stamp: ASCII, values percent-encoded, defaults left out.
local function encode(value)
  return (value:gsub("[^A-Za-z0-9_./:,+@-]", function(c) return string.format("%%%02X", c:byte()) end))
end

local function stamp_of(found)
  local parts = {G.stamp}
  for _, key in ipairs(G.keys) do
    local value = found[key.name]
    if value and value ~= key.default then parts[#parts + 1] = key.name .. "=" .. encode(value) end
  end
  local text = table.concat(parts, " ")
  if #text > G.max_stamp then
    wrong("long_stamp", {bytes = #text, max = G.max_stamp}, {"model", "checkpoint", "gpu_types"})
  end
  return text
end

local function check_together(found)
  local least, most = tonumber(found.min_gpus or 0), tonumber(found.max_gpus or 0)
  local per = tonumber(found.tp or 1) * tonumber(found.pp or 1)
  if most > 0 then
    local texts = {min = integer(least), max = integer(most), per = integer(per)}
    if least > most then wrong("min_max", texts, {"min_gpus", "max_gpus"}) end
    if per > most then wrong("degrees", texts, {"tp", "pp", "max_gpus"}) end
    if most - most % per < least then
      texts.better = integer(math.ceil(least / per) * per)
      wrong("multiple", texts, {"tp", "pp", "min_gpus", "max_gpus"})
    end
  end
  if found.micro_batch and found.global_batch then
    if tonumber(found.micro_batch) > tonumber(found.global_batch:match("[0-9]+$")) then
      local texts = {micro = found.micro_batch, batch = found.global_batch}
      wrong("micro", texts, {"micro_batch", "global_batch"})
    end
  end
  if found.adapt == "yes" and (found.global_batch or ""):find(":", 1, true) then
    wrong("adapt", {batch = found.global_batch}, {"adapt", "global_batch"})
  end
  if found.resize == "no" and found.reshard == "yes" then wrong("reshard", nil, {"resize", "reshard"}) end
  if found.loop and not found.checkpoint then wrong("loop", nil, {"loop"}) end
  return stamp_of(found)
end

-- Scripts --------------------------------------------------------------------------------------------------------------

-- The first command of a text that begins with a line end. These patterns, and plain finds, are all that ever looks at more
-- than a directive's own lines: C code, and linear.
local COMMAND = "\n[ \t\r\v\f]*[^# \t\r\v\f\n]"
local DIRECTIVE = "\n" .. PREFIX .. "[ \t\r\v\f\n]"

-- Whether a #SYNERGY line stands before the first command where the first G.max_header bytes hold neither.
local function directive_beyond(script)
  local text = "\n" .. script:sub(1, G.max_look) .. "\n"
  local at = text:find("\n" .. PREFIX, G.max_header - #PREFIX, true)
  at = at and text:find(DIRECTIVE, at)
  return at ~= nil and not text:sub(1, at):find(COMMAND)
end

-- The `#SYNERGY` lines, {number, text} each, before the first line that is neither empty nor a comment; nil and the error's
-- line where they are beyond the bounds. Only the first G.max_header bytes are looked at for them.
local function directive_lines(script)
  local limit = math.min(#script, G.max_header)
  local after = script:sub(limit + 1, limit + 1)
  local head = "\n" .. script:sub(1, limit) .. (after == "" and "\n" or after)
  local found, at, number = {}, 1, 0
  local any = head:find("\n" .. PREFIX, 1, true)
  if not any and after == "" then return found end
  local command = head:find(COMMAND)
  if command then head = head:sub(1, command) end
  while any do
    local first, last = head:find(DIRECTIVE, at)
    if not first then break end
    number = number + select(2, head:sub(at, first):gsub("\n", ""))
    if #found == G.max_lines then return nil, message(number, {code = "many_lines", values = {max = G.max_lines}}) end
    local stop = script:find("\n", first, true) or #script + 1
    if stop - first > G.max_line then return nil, message(number, {code = "long_line", values = {max = G.max_line}}) end
    found[#found + 1] = {number, script:sub(first, stop - 1)}
    at = last
  end
  if not command and after ~= "" and (#found > 0 or directive_beyond(script)) then
    local lines = select(2, head:sub(1, -2):gsub("\n", ""))
    return nil, message(lines, {code = "long_header", values = {max = G.max_header}})
  end
  return found
end

-- The number of the first `#SYNERGY` line behind the first command, where nobody reads it; nil where there is none in the first
-- G.max_header bytes, or where a here-document may hold it.
local function unread_line(script)
  local text = "\n" .. script:sub(1, G.max_header) .. "\n"
  if not text:find("\n" .. PREFIX, 1, true) then return nil end
  local command = text:find(COMMAND)
  local first = command and text:find(DIRECTIVE, command + 1)
  if not first or text:sub(command, first):find("<<", 1, true) then return nil end
  return select(2, text:sub(1, first):gsub("\n", ""))
end

-- The number of the first line before the first command that means to be a directive and is not read as one, such as
-- `#synergy tp=2` or one with blanks before it; nil where there is none in the first G.max_header bytes.
local function odd_line(script)
  local head = "\n" .. script:sub(1, G.max_header)
  head = head:sub(1, (head:find(COMMAND)))
  if not head:lower():find("synergy", 1, true) then return nil end
  local at = 1
  while true do
    local first, last = head:find("\n[ \t]*#+[ \t]*[sS][yY][nN][eE][rR][gG][yY][ \t:]+[%w_]+=", at)
    if not first then return nil end
    if not head:find("^" .. DIRECTIVE, first) then return select(2, head:sub(1, first):gsub("\n", "")) end
    at = last
  end
end

-- What of a key and its value has no effect any more, as {code, values} each.
local function retired(key, value)
  if key.kind == "retired" then return {{code = "retired", values = {key = key.name}}} end
  local found = {}
  if not key.retired_words then return found end
  for name in (value .. ","):gmatch("([^,]*),") do
    if key.retired_words[name] then
      local example = key.name .. "=" .. key.example
      found[#found + 1] = {code = "retired_word", values = {key = key.name, word = name, example = example}}
    end
  end
  return found
end

-- The canonical values and the stamp of directive lines, and the lines on what has no effect any more; nil and the error's line
-- where they are wrong.
local function read(directive)
  local found, lines, last, notes = {}, {}, directive[1][1], {}
  local ok, result = pcall(function()
    for _, line in ipairs(directive) do
      last = line[1]
      for _, word in ipairs(words(line[2], #PREFIX + 1)) do
        local name = word[1]
        local key = key_of(name)
        if found[name] then wrong("duplicate", {key = name, line = lines[name]}) end
        found[name] = check(key, word[2])
        lines[name] = line[1]
        for _, note in ipairs(retired(key, word[2])) do notes[#notes + 1] = message(line[1], note) end
      end
    end
    return check_together(found)
  end)
  if ok then return found, result, notes end
  if type(result) ~= "table" then error(result, 0) end
  local at = 0
  for _, name in ipairs(result.keys) do at = math.max(at, lines[name] or 0) end
  return nil, message(at > 0 and at or last, result)
end

-- What a script amounts to, without a job: "none"; "ok" and the stamp; or "error" and the line a user would see.
function M.check(script)
  local directive, mistake = directive_lines(script)
  if not directive then return "error", mistake end
  if #directive == 0 then return "none" end
  local found, text = read(directive)
  return found and "ok" or "error", text
end

-- Requests -------------------------------------------------------------------------------------------------------------

-- The GPU requests in a tres string such as "gres:gpu:a100:4,gres:nic:1": how many, and the first.
local function gpu_requests(tres)
  local count, first = 0, nil
  if type(tres) ~= "string" then return 0 end
  for part in tres:gmatch("[^,]+") do
    local name = part:gsub("^gres[:/]", "")
    if name:find("^gpu[:=]") or name == "gpu" then
      count, first = count + 1, first or name
    end
  end
  return count, first
end

-- {kind, count} of a tres string that is one GPU request and nothing else.
local function one_request(tres)
  local count, first = gpu_requests(tres)
  if count ~= 1 or tres:find(",", 1, true) then return nil end
  local kind, number = first:match("^gpu:([^:=]+)[:=]([0-9]+)$")
  if not kind then kind, number = "", first == "gpu" and "1" or first:match("^gpu[:=]([0-9]+)$") end
  if not number and first:find("^gpu:[^:=]+$") then kind, number = first:sub(5), "1" end
  return number and #number < 6 and tonumber(number) > 0 and {kind = kind, count = tonumber(number)} or nil
end

-- What each task asks for but its CPUs: from 23.11 on -c2 is "cpu=2" in there too, which cpus_per_task says as well.
local function per_task(job_desc)
  local tres = job_desc.tres_per_task
  if type(tres) ~= "string" then return tres end
  return (("," .. tres):gsub(",cpu=%d+", ""):gsub("^,", ""))
end

local function given(number)
  return type(number) == "number" and number > 0 and number < UNSET and number or nil
end

-- What a script may read that says something else once the job has one task a node; and what starts tasks.
local TASK_VARIABLES = {
  "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_TASKS_PER_NODE", "SLURM_CPUS_PER_TASK", "SLURM_TRES_PER", "SLURM_GPUS_PER", "SLURM_GPUS[^_%w]",
}
local STARTERS = {"synergy%-launch", "srun", "mpirun", "mpiexec"}
-- What must not stand before synergy-launch: a word that is no option; quotes; options of srun that one task a node would need
-- changed, the short ones also behind others as in -ln8.
local NOT_BEFORE = {"%s[^%s%-]", "[\"'\\]", "%s%-%w*[cnG]", "%s%-%-ntasks", "%s%-%-cpus", "%s%-%-gpus", "%s%-%-gres"}

-- Whether a line is `synergy-launch ...` or `srun OPTIONS synergy-launch ...` and no second command. An option's value in a
-- word of its own can't be told from a command, so it counts as one.
local function is_launch(line)
  local at, stop = line:find("synergy-launch", 1, true)
  if not at or #line > G.max_line or line:find("^%S", stop + 1) then return false end
  if line:gsub("2>&1", ""):find("[;&|`]") or line:find("$(", 1, true) then return false end
  local options, path = (" " .. line:sub(1, at - 1)):match("^(.*%s)(.*)$")
  if path ~= "" and (path:sub(-1) ~= "/" or path:find("^%-") or path:find("=", 1, true)) then return false end
  options = options:match("^%s+srun(%s.*)$") or options
  for _, pattern in ipairs(NOT_BEFORE) do
    if options:find(pattern) then return false end
  end
  for i = 2, #STARTERS do
    if line:find(STARTERS[i], stop, true) then return false end
  end
  return true
end

-- Whether all that the script starts through Slurm is synergy-launch, which starts its processes itself, whatever the tasks.
local function only_launches(script)
  if #script > G.max_header then return false end
  local text = "\n" .. script .. "\n"
  for _, name in ipairs(TASK_VARIABLES) do
    if text:find(name) then return false end
  end
  -- comments first: a backslash at the end of one continues nothing
  text = text:gsub("\n[ \t]*#[^\n]*", "\n"):gsub("\\\n", "")
  local launches = false
  for _, starter in ipairs(STARTERS) do
    local looked = 0
    for line in text:gmatch("\n([^\n]*" .. starter .. "[^\n]*)") do
      looked = looked + 1
      if looked > G.max_lines or not is_launch(line) then return false end
      launches = true
    end
  end
  return launches
end

-- Whether synergy-launch stands nowhere in a script but in its comments.
local function launches_nothing(script)
  local pattern = "synergy[-_]launch"
  if not script:find(pattern) then return true end
  return not ("\n" .. script):gsub("\n[ \t]*#[^\n]*", "\n"):find(pattern)
end

-- The nodes of a job, where its options leave Slurm no choice.
local function nodes_of(job_desc, node, job, task)
  local least, tasks = given(job_desc.min_nodes), given(job_desc.num_tasks)
  if least and least == given(job_desc.max_nodes) then return least end
  if least and least > 1 or given(job_desc.max_nodes) then return nil end
  if node and job then return job.count % node.count == 0 and job.count / node.count or nil end
  if tasks and given(job_desc.ntasks_per_node) == 1 then return tasks end
  if job and job.count == 1 or task and tasks == 1 then return 1 end
  return nil
end

-- Nodes, and GPUs, their kind and tasks of each, where the job's options come to the same on every node; else nil. A field
-- that names anything besides one GPU request is left alone: asking by node would lose the rest.
local function even_shape(job_desc)
  local node, job, task =
    one_request(job_desc.tres_per_node), one_request(job_desc.tres_per_job), one_request(per_task(job_desc))
  local function lost(tres, request)
    return not request and (tres or "") ~= ""
  end
  if lost(job_desc.tres_per_node, node) or lost(job_desc.tres_per_job, job) or lost(per_task(job_desc), task) then
    return nil
  end
  if lost(job_desc.tres_per_socket, nil) then return nil end
  if given(job_desc.ntasks_per_socket) or given(job_desc.ntasks_per_core) then return nil end
  local nodes = nodes_of(job_desc, node, job, task)
  if not nodes then return nil end
  local all, each, per_gpu = given(job_desc.num_tasks), given(job_desc.ntasks_per_node), given(job_desc.ntasks_per_tres)
  local gpus = node and node.count or job and job.count / nodes
  if per_gpu and (per_gpu > 1 or not gpus) then return nil end
  local tasks = each or per_gpu and gpus or all and all / nodes or 1
  gpus = gpus or task.count * tasks
  local kind = node and node.kind or job and job.kind or task.kind
  local same = gpus % 1 == 0 and tasks % 1 == 0 and (not all or all == tasks * nodes) and (not per_gpu or tasks == gpus)
  for _, asked in ipairs({{node, gpus}, {job, gpus * nodes}, {task, gpus / tasks}}) do
    local request, count = asked[1], asked[2]
    same = same and (not request or (request.kind == kind or request.kind == "") and request.count == count)
  end
  return same and {nodes = nodes, gpus = gpus, kind = kind, tasks = tasks} or nil
end

-- What keeps the job from the form that can be resized, GPUs by node and one task on each; nil where it has it.
local function other_form(job_desc)
  for _, option in ipairs({
    {"tres_per_job", "--gpus"}, {"tres_per_socket", "--gpus-per-socket"}, {"tres_per_task", "--gpus-per-task"},
  }) do
    if gpu_requests(job_desc[option[1]]) > 0 then return {code = "gpus", values = {option = option[2]}} end
  end
  local all, each, per_gpu = given(job_desc.num_tasks), given(job_desc.ntasks_per_node), given(job_desc.ntasks_per_tres)
  local option, tasks
  if per_gpu then
    option, tasks = "--ntasks-per-gpu", per_gpu
  elseif each and each > 1 then
    option, tasks = "--ntasks-per-node", each
  elseif not each and all and all > (given(job_desc.min_nodes) or 1) then
    option, tasks = "--ntasks", all
  end
  return option and {code = "tasks", values = {option = option, tasks = integer(tasks)}} or nil
end

-- The option that no other size would meet, nil for none: the daemon can't place it, or Slurm takes a whole node's CPUs after an
-- update of the size (22.05, GRES_ENFORCE_BIND).
local function one_size_option(job_desc)
  local flags = job_desc.bitflags
  if type(flags) == "number" and math.floor(flags / 16) % 2 == 1 then return "--gres-flags=enforce-binding" end
  if (job_desc.licenses or "") ~= "" then return "--licenses" end
  if job_desc.contiguous == 1 then return "--contiguous" end
  for _, field in ipairs({"sockets_per_node", "cores_per_socket"}) do
    if given(job_desc[field]) then return "--" .. field:gsub("_", "-") end
  end
  return nil
end

local function set_environment(job_desc, name, value)
  pcall(function()
    if job_desc.environment[name] ~= nil then job_desc.environment[name] = value end
  end)
end

-- Asks for the same nodes, with the same GPUs and CPUs on each, by node and with one task on each.
local function ask_by_node(job_desc, shape)
  local cpus = given(job_desc.cpus_per_task)
  if shape.tasks > 1 and (cpus or not job_desc.cpus_per_tres) then job_desc.cpus_per_task = shape.tasks * (cpus or 1) end
  job_desc.num_tasks, job_desc.ntasks_per_node = shape.nodes, 1
  job_desc.min_nodes, job_desc.max_nodes = shape.nodes, shape.nodes
  if given(job_desc.ntasks_per_tres) then job_desc.ntasks_per_tres = UNSET end
  local kind = shape.kind ~= "" and shape.kind .. ":" or ""
  local old = (job_desc.tres_per_node or "") .. (job_desc.tres_per_job or "") .. (per_task(job_desc) or "")
  -- "gres:" up to 23.02, "gres/" from 23.11 on: neither takes the other's
  job_desc.tres_per_node = (old:find("gres/", 1, true) and "gres/gpu:" or "gres:gpu:") .. kind .. integer(shape.gpus)
  for _, field in ipairs({"tres_per_job", "tres_per_task"}) do
    if (job_desc[field] or "") ~= "" then job_desc[field] = "" end
  end
  -- sbatch wrote them for srun, and no later size would meet them; with one task synergy-launch starts the others itself
  for _, name in ipairs({"SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE"}) do
    set_environment(job_desc, name, "1")
  end
end

-- Jobs -----------------------------------------------------------------------------------------------------------------

-- The GPU component of a heterogeneous job is resized where it is not the first. Its components come one after the other, the
-- script with the first one.
local het_job = {next_offset = 0}

local function het_offset(job_desc)
  local offset = job_desc.het_job_offset
  return type(offset) == "number" and offset < UNSET and offset or nil
end

local function asks_for_gpus(job_desc)
  for _, field in ipairs({"tres_per_node", "tres_per_job", "tres_per_socket", "tres_per_task"}) do
    if gpu_requests(job_desc[field]) > 0 then return true end
  end
  return false
end

-- Says of a further component why the job keeps its size.
local function component(job_desc, offset, submit_uid)
  local job = het_job
  if job.uid ~= submit_uid or job.next_offset ~= offset then return end
  job.next_offset = offset + 1
  if not asks_for_gpus(job_desc) then return end
  job.with_gpus = job.with_gpus + 1
  local why = job.with_gpus > 1 and {code = "het", values = {}} or other_form(job_desc)
  if why then slurm.log_user("%s", message(job.line, why)) end
end

-- Refuses what must be a mistake. Returns why the job keeps its size, or nil and the even shape that it is to ask for by node
-- (nil where it does already).
local function resizable_form(job_desc)
  if gpu_requests(job_desc.tres_per_node) > 1 then wrong("mixed_gpus") end
  if het_offset(job_desc) then
    if job_desc.requeue == 0 then wrong("no_requeue") end
    return asks_for_gpus(job_desc) and {code = "het_first", values = {}} or nil
  end
  local other = other_form(job_desc)
  if (not other or other.code ~= "gpus") and gpu_requests(job_desc.tres_per_node) == 0 then wrong("no_gpus") end
  if job_desc.requeue == 0 then wrong("no_requeue") end
  local option = one_size_option(job_desc)
  if option then return {code = "one_size", values = {option = option}} end
  if not other then return nil end
  local shape = even_shape(job_desc)
  if not shape or not only_launches(job_desc.script) then return other end
  return nil, shape
end

-- The grace in seconds that the daemon's heartbeat gives new jobs; nil when it is absent, damaged or old.
local function heartbeat()
  local path = settings.heartbeat or (settings.state_dir and settings.state_dir .. "/heartbeat")
  local file = path and io.open(path, "r")
  if not file then return nil end
  local text = file:read(64)
  file:close()
  local beat, grace = (text or ""):match("^([0-9]+) ([0-9]+)\n")
  if not beat or #beat > 12 or #grace > 9 then return nil end
  local age = os.time() - tonumber(beat)
  if age > settings.heartbeat_max_age_s or age < -settings.heartbeat_max_age_s then return nil end
  return math.min(settings.grace_s or tonumber(grace), 3600)
end

-- The launchers of a job's nodes find one another by it, and nobody else can; never the one of the job that submitted this one.
local function set_secret(job_desc)
  pcall(function()
    local file = io.open("/dev/urandom", "rb")
    local bytes = file:read(16)
    file:close()
    job_desc.environment["SYNERGY_JOB_SECRET"] = bytes:gsub(".", function(c) return string.format("%02x", c:byte()) end)
  end)
end

-- `grace`: seconds by which the start is put off; false: it keeps its size, and nothing of it is changed.
local function stamp_job(job_desc, found, stamp, grace)
  local own, note, begin, now = "", job_desc.admin_comment, job_desc.begin_time, os.time()
  local later = type(begin) == "number" and begin > now and begin < NO_TIME
  -- one that keeps its size is Slurm's to start: nobody decides about it first. On several nodes it is told where the links' arbiter is.
  local several = (given(job_desc.min_nodes) or 1) > 1
  local put_off = grace and (found.resize ~= "no" or several) and not (later and begin >= now + grace)
  -- The begin time that the user gave, which Slurm shows as it shows the grace, or not at all; an operator's own AdminComment.
  if later then own = own .. " begin=" .. integer(begin) end
  if type(note) == "string" and note ~= "" then own = own .. " note=" .. encode(note:sub(1, MAX_NOTE)) end
  job_desc.admin_comment = own ~= "" and stamp .. " |" .. own or stamp
  if settings.state_dir then
    local ok = pcall(function() job_desc.environment["SYNERGY_STATE_DIR"] = settings.state_dir end)
    if not ok then slurm.log_info("%s", "synergy: SYNERGY_STATE_DIR could not be set in the job's environment") end
  end
  set_secret(job_desc)
  if not grace then return end
  if found.resize ~= "no" then
    job_desc.requeue = 1
    -- sbatch's own words for srun, which a smaller size would not meet: empty, a step takes the GPUs that the job has
    for _, name in ipairs({"SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK"}) do
      set_environment(job_desc, name, "")
    end
    -- from 23.11 on; CPUs of a task stand in SLURM_CPUS_PER_TASK too
    for name, word in pairs({SLURM_TRES_PER_TASK = "gpu", SLURM_TRES_BIND = "per_task"}) do
      pcall(function()
        if job_desc.environment[name]:find(word, 1, true) then job_desc.environment[name] = "" end
      end)
    end
  end
  if put_off then job_desc.begin_time = now + grace end
end

-- Why a deadline can't be met whatever happens; nil where it may be. What a job's steps take is not known here.
local function late(job_desc, deadline)
  local begin, now = job_desc.begin_time, os.time()
  if deadline <= now then return "it has passed" end
  if type(begin) == "number" and begin < 4294967294 and deadline <= begin then return "--begin is not before it" end
  return nil
end

-- The line with which a job is refused, nil if it may go on.
local function refusal(job_desc, directive, submit_uid)
  local found, text, notes = read(directive)
  if not found then return text end
  for _, line in ipairs(notes) do slurm.log_user("%s", line) end
  local why = found.deadline and late(job_desc, tonumber(found.deadline))
  if why then
    local line = message(directive[1][1], {code = "late", values = {deadline = found.deadline, why = why}})
    if settings.refuse_late then return line end
    slurm.log_user("%s", line)
  end
  local ok, fixed, shape = true, nil, nil
  if found.resize ~= "no" then
    ok, fixed, shape = pcall(resizable_form, job_desc)
    if not ok and type(fixed) ~= "table" then error(fixed, 0) end
    if ok and het_offset(job_desc) then
      het_job = {uid = submit_uid, next_offset = 1, with_gpus = fixed and 1 or 0, line = directive[1][1]}
    end
    if fixed then
      local line = message(directive[1][1], fixed)
      if not ok then return line end
      slurm.log_user("%s", line)
      if fixed.code == "one_size" then  -- the daemon can't see all of these
        found.resize, found.reshard = "no", nil
        text = stamp_of(found)
      end
    elseif launches_nothing(job_desc.script) then
      slurm.log_user("%s", message(directive[1][1], {code = "no_launch", values = {}}))
    end
  end
  local grace = heartbeat()
  if not grace then
    slurm.log_info("%s", "synergy: no fresh heartbeat; the job runs as a plain Slurm job")
  elseif not fixed or fixed.code ~= "het_first" then
    if shape then ask_by_node(job_desc, shape) end
    stamp_job(job_desc, found, text, not fixed and grace)
  end
  return nil
end

-- Call first in slurm_job_submit, and return what it returns unless that is slurm.SUCCESS.
function M.submit(job_desc, part_list, submit_uid)
  local offset = het_offset(job_desc)
  if offset and offset > 0 then
    pcall(component, job_desc, offset, submit_uid)
    return slurm.SUCCESS
  end
  local script = job_desc.script
  if type(script) ~= "string" then return slurm.SUCCESS end
  local comment = job_desc.admin_comment
  local ok, directive, text = pcall(directive_lines, script)
  if ok and directive then
    pcall(function()
      local line = unread_line(script)
      if line then slurm.log_user("%s", message(line, {code = "unread_line", values = {}})) end
      line = odd_line(script)
      if line then slurm.log_user("%s", message(line, {code = "odd_line", values = {}})) end
    end)
    if #directive == 0 then return slurm.SUCCESS end
    ok, text = pcall(refusal, job_desc, directive, submit_uid)
    if ok and not text then return slurm.SUCCESS end
  elseif not ok then
    text = directive
    if not ("\n" .. script):find("\n" .. PREFIX, 1, true) then return slurm.SUCCESS end
  end
  if not ok then
    pcall(slurm.log_error, "%s", "synergy: failed on a job of uid " .. tostring(submit_uid) .. ": " .. tostring(text))
    local said, line = pcall(function() return message(1, {code = "internal", values = {error = show(text)}}) end)
    pcall(slurm.log_user, "%s", said and line or "the Synergy plugin failed on this job: it is submitted all the same; tell your admins")
    pcall(function() if job_desc.admin_comment ~= comment then job_desc.admin_comment = comment or "" end end)
    return slurm.SUCCESS
  end
  pcall(slurm.log_user, "%s", text)
  return slurm.ERROR
end

-- Call first in slurm_job_modify. The daemon's own updates come through here too, and Slurm itself keeps users from
-- AdminComment, so nothing is refused; a user who takes the right to requeue away is told what that means.
function M.modify(job_desc, job_rec, part_list, modify_uid)
  pcall(function()
    local stamp = job_rec.admin_comment
    if job_desc.requeue == 0 and type(stamp) == "string" and stamp:sub(1, #G.stamp) == G.stamp then
      slurm.log_user("%s", "Synergy can't resize a job with Requeue=0; it keeps the size it has")
    end
  end)
  return slurm.SUCCESS
end

return M
