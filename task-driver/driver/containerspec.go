package driver

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
	"github.com/heteroflow/heteroflow/task-driver/docker"
)

// container turns a plan into what is asked of the daemon. It is pure but for looking at links and device nodes.
func (r *dockerRuntime) container(p *plan, image string, info docker.Info) (docker.Container, error) {
	var problems []error
	bad := func(err error) {
		if err != nil {
			problems = append(problems, fmt.Errorf("config.%w", err))
		}
	}
	bad(r.hostModes(p.tc))
	caps, err := r.options.capabilities(p.tc.CapAdd, p.tc.CapDrop)
	bad(err)
	mounts, err := r.mounts(p)
	bad(err)
	ports, err := publish(p.cfg, p.tc)
	bad(err)
	oci, err := r.ociRuntime(p, info)
	bad(err)
	bad(r.securityOpts(p.tc))
	shm, err := parseBytes(p.tc.ShmSize)
	bad(err)
	if len(problems) > 0 {
		return docker.Container{}, errors.Join(problems...)
	}
	linux := p.cfg.GetResources().GetLinuxResources()
	c := docker.Container{
		Name: containerName(p.cfg), Image: image, Entrypoint: p.tc.Entrypoint, Command: argv(p.tc), Env: envList(p.env),
		Labels: r.labels(p), User: p.cfg.GetUser(), WorkDir: p.tc.WorkDir, Hostname: p.tc.Hostname, StopSignal: p.tc.StopSignal,
		Mounts: mounts, Devices: devices(p), Ports: ports,
		MemoryBytes: memoryLimit(p.cfg), MemoryReserveBytes: memoryReserve(p.cfg),
		CPUShares: linux.GetCpuShares(), CPUSet: linux.GetCpusetCpus(), PidsLimit: p.tc.PidsLimit, ShmBytes: shm,
		NetworkMode: p.tc.NetworkMode, PIDMode: p.tc.PIDMode, IPCMode: p.tc.IPCMode,
		DNS: p.tc.DNSServers, ExtraHosts: p.tc.ExtraHosts,
		CapAdd: caps, CapDrop: []string{"ALL"}, GroupAdd: p.tc.GroupAdd, SecurityOpt: p.tc.SecurityOpt, Sysctls: p.tc.Sysctl,
		ReadOnlyRoot: p.tc.ReadonlyRootfs, Privileged: p.tc.Privileged, Init: p.tc.Init, Runtime: oci,
		LogMaxFiles: 2, LogMaxFileMegabytes: 2, // enough to bridge a supervisor; Nomad keeps the logs themselves
	}
	if c.Privileged {
		c.CapAdd, c.CapDrop = nil, nil
	}
	if p.tc.CPUHardLimit {
		c.CPUQuotaUS, c.CPUPeriodUS = cpuQuota(linux.GetPercentTicks(), p.tc.CPUCFSPeriod)
	}
	if dns := p.cfg.GetDns(); dns != nil {
		c.DNSSearch, c.DNSOptions = dns.GetSearches(), dns.GetOptions()
		if len(c.DNS) == 0 {
			c.DNS = dns.GetServers()
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.tc.Ulimit)) {
		limit, err := parseUlimit(name, p.tc.Ulimit[name])
		if err != nil {
			return docker.Container{}, err
		}
		c.Ulimits = append(c.Ulimits, limit)
	}
	return c, nil
}

// memoryReserve is the soft limit in bytes: what the job asked for, when it may use more.
func memoryReserve(cfg *driverpb.TaskConfig) int64 {
	memory := cfg.GetResources().GetAllocatedResources().GetMemory()
	if memory.GetMemoryMaxMb() == 0 || memory.GetMemoryMaxMb() == memory.GetMemoryMb() {
		return 0
	}
	return memory.GetMemoryMb() << 20
}

func argv(tc TaskConfig) []string {
	if tc.Command == "" {
		return tc.Args
	}
	return append([]string{tc.Command}, tc.Args...)
}

// containerName is the task's id in the characters a daemon allows.
func containerName(cfg *driverpb.TaskConfig) string {
	parts := strings.SplitN(cfg.GetId(), "/", 3)
	if len(parts) == 3 {
		parts[0], parts[1] = parts[1], parts[0] // the task's name first, as in the stock driver
	}
	return strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '.' || c == '-' {
			return c
		}
		return '-'
	}, strings.TrimLeft(strings.Join(parts, "-"), "-_."))
}

// labels are the job's, then ours: a job cannot pass its container off as another's.
func (r *dockerRuntime) labels(p *plan) map[string]string {
	labels := maps.Clone(p.tc.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, map[string]string{
		"com.hashicorp.nomad.alloc_id":        p.cfg.GetAllocId(),
		"com.hashicorp.nomad.task_name":       p.cfg.GetName(),
		"com.hashicorp.nomad.task_group_name": p.cfg.GetTaskGroupName(),
		"com.hashicorp.nomad.job_id":          p.cfg.GetJobId(),
		"com.hashicorp.nomad.job_name":        p.cfg.GetJobName(),
		"com.hashicorp.nomad.namespace":       p.cfg.GetNamespace(),
		"com.hashicorp.nomad.node_id":         p.cfg.GetNodeId(),
		"com.hashicorp.nomad.node_name":       p.cfg.GetNodeName(),
		docker.LabelTask:                      p.cfg.GetId(),
		docker.LabelState:                     r.stateDir,
	})
	return labels
}

// hostModes refuses what would take a container's walls down, unless the node's administrator allowed it.
func (r *dockerRuntime) hostModes(tc TaskConfig) error {
	o := r.options
	refuse := func(key, what, option string) error {
		return fmt.Errorf("%s: %s is not allowed on this node: leave it out, or have docker { %s = true } set in the plugin's config", key, what, option)
	}
	mode := func(s string) string { m, _, _ := strings.Cut(strings.ToLower(strings.TrimSpace(s)), ":"); return m }
	switch network := mode(tc.NetworkMode); {
	case network == "host" && !o.AllowHostNetwork:
		return refuse("network_mode", "host", "allow_host_network")
	case network == "container":
		return errors.New("network_mode: container:… would enter another task's network: leave it out")
	case mode(tc.PIDMode) == "container" || mode(tc.IPCMode) == "container":
		return errors.New("pid_mode, ipc_mode: container:… would enter another task: leave it out")
	case mode(tc.PIDMode) == "host" && !o.AllowHostPID:
		return refuse("pid_mode", "host", "allow_host_pid")
	case mode(tc.IPCMode) == "host" && !o.AllowHostIPC:
		return refuse("ipc_mode", "host", "allow_host_ipc")
	case tc.Privileged && !o.AllowPrivileged:
		return refuse("privileged", "a privileged container, which sees every card of the node,", "allow_privileged")
	}
	return nil
}

// securityOpts refuses every option that may switch a protection off: a profile can allow anything.
func (r *dockerRuntime) securityOpts(tc TaskConfig) error {
	if r.options.AllowPrivileged {
		return nil
	}
	for _, opt := range tc.SecurityOpt {
		name, _, _ := strings.Cut(strings.ReplaceAll(opt, ":", "="), "=")
		if name != "no-new-privileges" {
			return fmt.Errorf("security_opt: %q may switch a protection off and is not allowed on this node: leave it out, or have docker { allow_privileged = true } set in the plugin's config", name)
		}
	}
	return nil
}

// vendorRuntimes are the OCI runtimes that the makers' container toolkits install.
var vendorRuntimes = map[accel.Vendor]string{
	accel.NVIDIA: "nvidia", accel.Ascend: "ascend", accel.MThreads: "mthreads", accel.AMD: "amd",
}

// ociRuntime is the job's when allowed, else the granted brand's when the daemon has it, else the daemon's default.
func (r *dockerRuntime) ociRuntime(p *plan, info docker.Info) (string, error) {
	if want := p.tc.OCIRuntime; want != "" {
		if !slices.Contains(r.options.AllowRuntimes, want) {
			return "", fmt.Errorf("oci_runtime: %q is not allowed on this node: write one of %s, or have it added to docker { allow_runtimes } in the plugin's config", want, strings.Join(r.options.AllowRuntimes, ", "))
		}
		if info.Version != "" && !slices.Contains(info.Runtimes, want) {
			return "", fmt.Errorf("oci_runtime: the Docker daemon has no runtime %q: write one of %s", want, strings.Join(info.Runtimes, ", "))
		}
		return want, nil
	}
	for _, v := range p.share.vendors() {
		if name := vendorRuntimes[v]; name != "" && slices.Contains(info.Runtimes, name) {
			return name, nil
		}
	}
	return "", nil
}

// devices are the nodes that device plugins ask for and those of the granted cards, where they exist: a simulated
// card has none.
func devices(p *plan) []docker.Device {
	var out []docker.Device
	seen := map[string]bool{}
	add := func(host, inside, permissions string) {
		if seen[inside] {
			return
		}
		seen[inside] = true
		out = append(out, docker.Device{HostPath: host, Path: inside, Permissions: permissions})
	}
	for _, d := range p.cfg.GetDevices() {
		permissions := d.GetCgroupPermissions()
		if permissions == "" {
			permissions = "rwm"
		}
		add(d.GetHostPath(), d.GetTaskPath(), permissions)
	}
	for _, path := range p.share.nodes {
		info, err := os.Stat(path)
		if err == nil && info.Mode()&os.ModeDevice != 0 && within("/dev", filepath.Clean(path)) {
			add(path, path, "rwm")
		}
	}
	return out
}

func containerPort(p *driverpb.PortMapping) int {
	if p.GetTo() > 0 {
		return int(p.GetTo())
	}
	return int(p.GetValue())
}

// publish maps the ports the task names to those Nomad reserved on the host.
func publish(cfg *driverpb.TaskConfig, tc TaskConfig) ([]docker.Port, error) {
	var out []docker.Port
	var known []string
	for _, p := range cfg.GetResources().GetPorts() {
		known = append(known, p.GetLabel())
	}
	for _, label := range tc.Ports {
		at := slices.Index(known, label)
		if at < 0 {
			return nil, fmt.Errorf("ports: the group's network has no port %q: write one of [%s], or add port %q { } to the network block", label, strings.Join(known, ", "), label)
		}
		if strings.EqualFold(tc.NetworkMode, "host") || strings.EqualFold(tc.NetworkMode, "none") {
			continue // nothing to publish: the port is the host's own, or there is no network
		}
		p := cfg.GetResources().GetPorts()[at]
		out = append(out, docker.Port{HostIP: p.GetHostIp(), Host: int(p.GetValue()), Container: containerPort(p)})
	}
	return out, nil
}
