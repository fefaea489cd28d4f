-- Synergy's hook for job_submit.lua. A site without a job_submit.lua installs this file under that name, beside slurm.conf;
-- a site that has one copies the three marked statements into its own. Slurm reads job_submit.lua anew when the file's time
-- changes, so `touch` it after an update of synergy.lua.

-- 1. At the top. If the module can't be loaded, `synergy` is the reason.
local loaded, synergy = pcall(function()
  return dofile("/etc/slurm/synergy/synergy.lua").configure{state_dir = "/var/lib/synergy"}
end)

function slurm_job_submit(job_desc, part_list, submit_uid)
  -- 2. First in slurm_job_submit. If the module is missing or broken, all jobs go on.
  if loaded then
    if synergy.submit(job_desc, part_list, submit_uid) ~= slurm.SUCCESS then return slurm.ERROR end
  elseif ("\n" .. (job_desc.script or "")):find("\n#SYNERGY", 1, true) then
    slurm.log_error("%s", "synergy: not loaded: " .. tostring(synergy))
    slurm.log_user("%s", "the Synergy plugin could not be loaded: the job is submitted, its #SYNERGY lines unread; tell your admins")
  end

  return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  -- 3. First in slurm_job_modify.
  if loaded then synergy.modify(job_desc, job_rec, part_list, modify_uid) end

  return slurm.SUCCESS
end

return slurm.SUCCESS
