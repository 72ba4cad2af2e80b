#Requires -Version 5.1
<#
.SYNOPSIS
Lends this Windows PC to a MoLink cluster: WSL2, the agent inside it, and its start at logon.

.DESCRIPTION
Run it in a PowerShell that was opened with "Run as administrator", by the account that will lend
the PC. It may be run again at any time: it takes up where it was left, repairs and upgrades.

What has to be decided before there is a Linux is decided here. Everything else is decided by
"python3 -m molink_agent.windows" inside the distribution, and only carried out here.

.EXAMPLE
powershell -ExecutionPolicy Bypass -File windows\install.ps1

.EXAMPLE
powershell -ExecutionPolicy Bypass -File windows\install.ps1 -Uninstall

.NOTES
What takes it back is kept in %LOCALAPPDATA%\MoLink, so that the folder that this lies in may go.
#>
[CmdletBinding()]
param(
    # The WSL distribution to use; it is installed if it is not there.
    [string]$Distribution = 'Ubuntu-24.04',
    # A wheel of MoLink, or a checkout; without it the checkout that this script lies in.
    [string]$From = '',
    # Show the steps, change nothing.
    [switch]$Check,
    # Remove the task, the agent and our lines in .wslconfig. WSL itself stays.
    [switch]$Uninstall,
    # With -Uninstall: also the agent's key, its limits and the model weights.
    [switch]$Purge,
    # Do not ask before WSL is restarted or the firewall is opened.
    [switch]$Yes,
    # Print what this knows of the PC as JSON, for molink agent doctor; changes nothing.
    [switch]$Facts
)

Set-StrictMode -Version 2.0
$ErrorActionPreference = 'Stop'
$env:WSL_UTF8 = '1'

$TaskName = 'MoLink agent'
$BuildMin = 19041
$FirewallRule = 'MoLink'
# What Python tells of an agent that takes any free port, and the port that it would have else.
$AnyPorts = '1-65535'
$DataPort = 27600
# What Windows calls the virtual machine of WSL.
$WslCreator = '{40E0AC32-46A5-438A-A0B2-2B479E8F2E90}'
$ExitUserError = 2

# What -Uninstall and -Facts need, kept beside each other as they lie in a checkout.
$KeptFolder = Join-Path $env:LOCALAPPDATA 'MoLink'
$KeptFiles = @('windows\install.ps1', 'deploy\install.sh', 'molink\__init__.py',
    'molink\errors.py', 'agent\molink_agent\__init__.py',
    'agent\molink_agent\windows\__init__.py', 'agent\molink_agent\windows\__main__.py',
    'agent\molink_agent\windows\logon_task.py', 'agent\molink_agent\windows\ports.py',
    'agent\molink_agent\windows\steps.py', 'agent\molink_agent\windows\wslconfig.py')

# One sentence for a person, and the exit code that the whole project uses for it.
function Stop-WithSentence([string]$Sentence) {
    [Console]::Error.WriteLine("molink: $Sentence")
    exit $ExitUserError
}

# Standard output of a program as text. Windows PowerShell takes any word on a program's standard
# error for a failure as soon as that is redirected, unless it is told to go on.
function Get-OutputOf([string]$Program, [string[]]$Arguments) {
    $ErrorActionPreference = 'Continue'
    $lines = & $Program @Arguments 2>$null
    # The wsl.exe that came with Windows 10 writes UTF-16 whatever it is told.
    return ($lines -join "`n").Replace("`0", '')
}

# Runs wsl.exe where one sees what it says; the exit code of what it ran decides.
function Invoke-Wsl([string]$Failed, [string[]]$Arguments) {
    & wsl.exe @Arguments
    if ($LASTEXITCODE -ne 0) { Stop-WithSentence "$Failed (exit code $LASTEXITCODE)." }
}

# ---- before there is a Linux -------------------------------------------------------------------

function Get-WindowsBuild {
    return [Environment]::OSVersion.Version.Build
}

function Test-Virtualisation {
    $computer = Get-CimInstance -ClassName Win32_ComputerSystem
    $processor = Get-CimInstance -ClassName Win32_Processor | Select-Object -First 1
    return [bool]($computer.HypervisorPresent -or $processor.VirtualizationFirmwareEnabled)
}

function Assert-Administrator {
    $identity = [Security.Principal.WindowsIdentity]::GetCurrent()
    $principal = New-Object Security.Principal.WindowsPrincipal($identity)
    if (-not $principal.IsInRole([Security.Principal.WindowsBuiltInRole]::Administrator)) {
        Stop-WithSentence 'Open PowerShell with "Run as administrator" and run this again.'
    }
}

function Assert-WindowsCanRunWsl {
    if ((Get-WindowsBuild) -lt $BuildMin) {
        Stop-WithSentence "This Windows has no WSL2: update it to build $BuildMin or newer."
    }
    if (-not (Test-Virtualisation)) {
        Stop-WithSentence 'Virtualisation is off: switch on VT-x, AMD-V or SVM in the firmware.'
    }
}

# The names of the distributions; empty when WSL is not there.
function Get-Distributions {
    if (-not (Get-Command wsl.exe -ErrorAction SilentlyContinue)) { return @() }
    $text = Get-OutputOf 'wsl.exe' @('--list', '--quiet')
    return @($text -split "`r?`n" | ForEach-Object { $_.Trim() } | Where-Object { $_ })
}

# Enables the Windows features, installs the distribution and lets the person name its first user.
function Install-Distribution {
    Write-Host "Installing WSL2 with $Distribution. It asks for a user name and a password of your"
    Write-Host 'choice; when you see its prompt, type: exit'
    & wsl.exe --install -d $Distribution
    $code = $LASTEXITCODE
    if ((Get-Distributions) -contains $Distribution) { return }
    if ($code -ne 0) {
        Stop-WithSentence "WSL could not install $Distribution (exit code $code): its own words stand above."
    }
    Stop-WithSentence 'Restart Windows, then run this again: WSL is being set up.'
}

# ---- inside the Linux --------------------------------------------------------------------------

function Invoke-InLinux([string[]]$Command) {
    Invoke-Wsl "This failed inside ${Distribution}: $($Command -join ' ')" `
        (@('-d', $Distribution, '--exec') + $Command)
}

function Get-FromLinux([string[]]$Command) {
    $text = Get-OutputOf 'wsl.exe' (@('-d', $Distribution, '--exec') + $Command)
    if ($LASTEXITCODE -ne 0) {
        Stop-WithSentence "This failed inside ${Distribution}: $($Command -join ' ')"
    }
    return $text.Trim()
}

function Get-LinuxPath([string]$WindowsPath) {
    return Get-FromLinux @('wslpath', '-a', '-u', $WindowsPath.Replace('\', '/'))
}

function Get-Source {
    if ($From) { return Get-LinuxPath (Resolve-Path $From).Path }
    return Get-LinuxPath (Split-Path -Parent $PSScriptRoot)
}

# The decisions, made by the distribution's own Python from the sources (a wheel is on its path as
# a whole, a checkout with the folder of the agent).
function Get-AskCommand([string[]]$Question) {
    $source = Get-Source
    return @('env', "PYTHONPATH=${source}:$source/agent", 'python3', '-m',
        'molink_agent.windows') + $Question
}

function Get-WslVersion {
    $text = Get-OutputOf 'wsl.exe' @('--version')
    if ($text -match '(\d+\.\d+\.\d+(\.\d+)?)') { return $Matches[1] }
    return 'unknown'
}

# 1 or 2, from the table of `wsl --list --verbose`: its words are translated, its numbers are not.
function Get-DistributionWsl {
    $text = Get-OutputOf 'wsl.exe' @('--list', '--verbose')
    $pattern = '(?m)^[\s*]*' + [regex]::Escape($Distribution) + '\s+\S.*?(\d)\s*$'
    if ($text -match $pattern) { return $Matches[1] }
    return '2'
}

function Get-WslConfigPath {
    return (Get-LinuxPath $env:USERPROFILE) + '/.wslconfig'
}

function Test-Task {
    return [bool](Get-ScheduledTask -TaskName $TaskName -ErrorAction SilentlyContinue)
}

# The account whose desktop this is: another one than ours where an administrator's password was
# given for a user without such rights.
function Get-LoggedOn {
    return "$((Get-CimInstance -ClassName Win32_ComputerSystem).UserName)"
}

function Get-NvidiaDriver {
    if (-not (Get-Command nvidia-smi.exe -ErrorAction SilentlyContinue)) { return '' }
    $text = Get-OutputOf 'nvidia-smi.exe' @('--query-gpu=driver_version', '--format=csv,noheader')
    if ($text -match '\d+\.\d+') { return $Matches[0] }
    return ''
}

# Seconds until Windows sleeps while plugged in: the last but one number, as words are translated.
function Get-SleepSeconds {
    $text = Get-OutputOf 'powercfg.exe' @('/query', 'SCHEME_CURRENT', 'SUB_SLEEP', 'STANDBYIDLE')
    $found = [regex]::Matches($text, '0x[0-9a-fA-F]{8}')
    if ($found.Count -lt 2) { return 0 }
    return [Convert]::ToInt32($found[$found.Count - 2].Value, 16)
}

function Get-FreeDisk {
    $drive = (Split-Path -Qualifier $env:USERPROFILE).TrimEnd(':')
    $free = (Get-CimInstance -ClassName Win32_LogicalDisk -Filter "DeviceID='${drive}:'").FreeSpace
    return [math]::Floor($free / 1000000000)
}

function Get-MemoryGB {
    $bytes = (Get-CimInstance -ClassName Win32_ComputerSystem).TotalPhysicalMemory
    return [math]::Floor($bytes / 1000000000)
}

# Facts about this PC by the names of the options of "molink_agent.windows plan".
function Get-Facts {
    return [ordered]@{
        'build' = "$(Get-WindowsBuild)"
        'virtualisation' = if (Test-Virtualisation) { 'on' } else { 'off' }
        'wsl-version' = Get-WslVersion
        'distribution' = $Distribution
        'distribution-wsl' = Get-DistributionWsl
        'task-registered' = if (Test-Task) { 'yes' } else { 'no' }
        'runs-as' = [Security.Principal.WindowsIdentity]::GetCurrent().Name
        'logged-on' = Get-LoggedOn
        'nvidia-driver' = Get-NvidiaDriver
        'sleeps-after-s' = "$(Get-SleepSeconds)"
        'free-disk-gb' = "$(Get-FreeDisk)"
    }
}

function Get-Steps {
    $known = Get-Facts
    $question = @('plan', '--wslconfig', (Get-WslConfigPath))
    foreach ($name in $known.Keys) { $question += "--$name=$($known[$name])" }
    return (Get-FromLinux (Get-AskCommand $question) | ConvertFrom-Json).steps
}

# ---- the steps ---------------------------------------------------------------------------------

function Restart-Wsl {
    if (-not $Yes) {
        $answer = Read-Host 'Restart WSL now? Everything that runs in it ends. [y/N]'
        if ($answer -notmatch '^[yY]') {
            Write-Host 'Not restarted: the network changes when Windows is restarted.'
            return
        }
    }
    Invoke-Wsl 'WSL could not be restarted: restart Windows, then run this again' @('--shutdown')
}

# With mirrored networking Windows' Hyper-V firewall drops what comes from outside, without a word.
# Ports that our rule lets through, or: none, not told, no firewall (an older Windows).
function Get-FirewallPorts {
    if (-not (Get-Command Get-NetFirewallHyperVRule -ErrorAction SilentlyContinue)) {
        return 'no firewall'
    }
    try {
        $rule = Get-NetFirewallHyperVRule -Name $FirewallRule -ErrorAction Stop
    } catch {
        if ($_.CategoryInfo.Category -eq 'ObjectNotFound') { return 'none' }
        return 'not told'
    }
    return "$($rule.LocalPorts -join ',')"
}

function Remove-FirewallRule {
    if (Get-Command Remove-NetFirewallHyperVRule -ErrorAction SilentlyContinue) {
        Remove-NetFirewallHyperVRule -Name $FirewallRule -ErrorAction SilentlyContinue
    }
}

function Request-Inbound {
    $ports = Get-FromLinux (Get-AskCommand @('ports'))
    $now = Get-FirewallPorts
    if ($now -eq 'no firewall') { return }
    if ($ports -eq $AnyPorts) {
        Remove-FirewallRule
        Write-Host 'This agent takes any free port: no rule can name it, so neighbours use the relay.'
        Write-Host 'To give it ports of its own, type this, then run this script again:'
        Write-Host "    wsl -d $Distribution --exec bash -lc 'molink agent join --data-port $DataPort'"
        return
    }
    if ($now -eq $ports) { return }
    # A rule for other ports lets in what is not the agent's, whatever is answered.
    Remove-FirewallRule
    if (-not $Yes) {
        Write-Host "Windows' Hyper-V firewall keeps neighbours out of WSL: they use the relay then."
        $answer = Read-Host "Let other PCs reach TCP ports $ports of WSL, the agent's? [y/N]"
        if ($answer -notmatch '^[yY]') { return }
    }
    New-NetFirewallHyperVRule -Name $FirewallRule -DisplayName 'MoLink agent' -Direction Inbound `
        -VMCreatorId $WslCreator -Protocol TCP -LocalPorts $ports -Action Allow | Out-Null
}

# An update that fails is no end: what follows needs a newer WSL only for mirrored networking.
function Update-Wsl {
    & wsl.exe --update
    if ($LASTEXITCODE -eq 0) { return }
    Write-Host "WSL was not updated (exit code $LASTEXITCODE): neighbours may need the relay."
}

function Convert-Distribution {
    Invoke-Wsl "$Distribution was not moved to WSL2" @('--set-version', $Distribution, '2')
}

function Install-Packages {
    $run = @('-d', $Distribution, '-u', 'root', '--exec', 'apt-get')
    $failed = "apt-get failed inside $Distribution"
    Invoke-Wsl $failed ($run + @('update'))
    Invoke-Wsl $failed ($run + @('install', '-y', 'python3-venv', 'python3-dev', 'gcc'))
}

# What takes all of this back when the folder with this script has gone.
function Save-KeptFiles {
    $source = Split-Path -Parent $PSScriptRoot
    if ($source -eq $KeptFolder) { return }
    foreach ($file in $KeptFiles) {
        $target = Join-Path $KeptFolder $file
        New-Item -ItemType Directory -Force -Path (Split-Path -Parent $target) | Out-Null
        Copy-Item -Path (Join-Path $source $file) -Destination $target -Force
    }
}

# The script for Linux, which lies beside this one's folder.
function Get-LinuxInstaller {
    return (Get-LinuxPath (Split-Path -Parent $PSScriptRoot)) + '/deploy/install.sh'
}

# The kept folder has no agent to install: from there only the rest is mended.
function Install-Agent {
    if (-not $From -and (Split-Path -Parent $PSScriptRoot) -eq $KeptFolder) {
        Write-Host 'The agent stays as it is: this folder holds none to install.'
        return
    }
    Invoke-InLinux @('sh', (Get-LinuxInstaller), '--from', (Get-Source))
}

function Register-Task {
    $sid = [Security.Principal.WindowsIdentity]::GetCurrent().User.Value
    $question = @('task-xml', '--user-sid', $sid, '--distribution', $Distribution)
    $xml = Get-FromLinux (Get-AskCommand $question)
    Register-ScheduledTask -TaskName $TaskName -Xml $xml -Force | Out-Null
}

function Invoke-Step($Step) {
    Write-Host $Step.says
    if ($Check) { return }
    switch ($Step.do) {
        'stop' { exit $ExitUserError }
        'note' { }
        'update-wsl' { Update-Wsl }
        'convert-distribution' { Convert-Distribution }
        'set-mirrored' { Invoke-InLinux (Get-AskCommand @('wslconfig', (Get-WslConfigPath))) }
        'restart-wsl' { Restart-Wsl }
        'install-packages' { Install-Packages }
        'install-agent' { Install-Agent }
        'register-task' { Register-Task }
        default { Stop-WithSentence "This script is older than its Python: $($Step.do)." }
    }
}

function Show-Next {
    Write-Host ''
    Write-Host 'MoLink is installed. Join; it asks for the invite that you were given:'
    Write-Host "    wsl -d $Distribution --exec bash -lc 'molink agent join'"
    Write-Host 'From your next logon on the agent starts by itself; to start it now:'
    Write-Host "    Start-ScheduledTask -TaskName '$TaskName'"
    Write-Host 'This folder may go. To remove MoLink, as administrator:'
    Write-Host "    powershell -ExecutionPolicy Bypass -File $KeptFolder\windows\install.ps1 -Uninstall"
}

function Install-All {
    if (-not $Check) { Assert-Administrator }
    Assert-WindowsCanRunWsl
    if ((Get-Distributions) -notcontains $Distribution) {
        if ($Check) { Stop-WithSentence "WSL2 with $Distribution would be installed first." }
        Install-Distribution
    }
    foreach ($step in Get-Steps) { Invoke-Step $step }
    if (-not $Check) {
        Save-KeptFiles
        Request-Inbound
        Show-Next
    }
}

function Uninstall-All {
    Assert-Administrator
    if (Test-Task) {
        Stop-ScheduledTask -TaskName $TaskName
        Unregister-ScheduledTask -TaskName $TaskName -Confirm:$false
    }
    Remove-FirewallRule
    if ((Get-Distributions) -contains $Distribution) {
        $options = @('--uninstall')
        if ($Purge) { $options += '--purge' }
        Invoke-InLinux (Get-AskCommand @('wslconfig', (Get-WslConfigPath), '--remove'))
        Invoke-InLinux (@('sh', (Get-LinuxInstaller)) + $options)
        Write-Host "WSL and $Distribution stay; to remove the distribution with all that is in it:"
        Write-Host "    wsl --unregister $Distribution"
    }
    if (Test-Path $KeptFolder) { Remove-Item -Path $KeptFolder -Recurse -Force }
}

# As one line of ASCII: the agent's Python decides what is well.
function Show-Facts {
    $known = Get-Facts
    $known['firewall-ports'] = Get-FirewallPorts
    $known['memory-gb'] = Get-MemoryGB
    Write-Output ($known | ConvertTo-Json -Compress)
}

if ($Facts) { Show-Facts } elseif ($Uninstall) { Uninstall-All } else { Install-All }
