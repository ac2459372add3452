package driver

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
	"github.com/heteroflow/heteroflow/task-driver/access"
	"github.com/heteroflow/heteroflow/task-driver/docker"
)

// build is what a container is made with beside its plan.
type build struct {
	image  string
	access access.Access
	unset  []string // variables of the image that a task does not get

	dataRoot string // where the daemon keeps its own
}

// container turns a plan into what is asked of the daemon. It is pure but for looking at links. What a job says comes
// first, what its cards need last, so that nothing of the former undoes the latter.
func (r *dockerRuntime) container(p *plan, b build) (docker.Container, error) {
	var problems []error
	bad := func(err error) {
		if err != nil {
			problems = append(problems, fmt.Errorf("config.%w", err))
		}
	}
	bad(r.hostModes(p.tc))
	caps, err := r.options.capabilities(p.tc.CapAdd, p.tc.CapDrop)
	bad(err)
	mounts, err := r.mounts(p, b.dataRoot)
	bad(err)
	devices, err := r.devices(p)
	bad(err)
	ports, err := publish(p.cfg, p.tc)
	bad(err)
	bad(r.securityOpts(p.tc))
	shm, err := parseBytes(p.tc.ShmSize)
	bad(err)
	pids, err := r.options.pids(p.tc.PidsLimit)
	bad(err)
	logType, logOptions, err := r.options.logging(p.tc.Logging)
	bad(err)
	bad(r.ociRuntime(p))
	if len(problems) > 0 {
		return docker.Container{}, errors.Join(problems...)
	}
	linux := p.cfg.GetResources().GetLinuxResources()
	limit, reserve := containerMemoryLimits(p.cfg, p.tc)
	c := docker.Container{
		Name: containerName(p.cfg), Image: b.image, Entrypoint: p.tc.Entrypoint, Command: argv(p.tc), Env: append(envList(p.env), b.unset...),
		Labels: r.labels(p), User: p.cfg.GetUser(), WorkDir: p.tc.WorkDir, Hostname: p.tc.Hostname, StopSignal: p.tc.StopSignal,
		Mounts: mounts, Devices: devices, Ports: ports,
		MemoryBytes: limit, MemoryReserveBytes: reserve, OOMScoreAdj: p.tc.OOMScoreAdj,
		CPUShares: linux.GetCpuShares(), CPUSet: linux.GetCpusetCpus(), PidsLimit: pids, ShmBytes: shm,
		NetworkMode: p.tc.NetworkMode, PIDMode: p.tc.PIDMode, IPCMode: p.tc.IPCMode,
		UTSMode: p.tc.UTSMode, UserNSMode: p.tc.UserNSMode, CgroupNSMode: p.tc.CgroupNS,
		ExtraHosts:     p.tc.ExtraHosts,
		NetworkAliases: p.tc.Aliases, IPv4Address: p.tc.IPv4, IPv6Address: p.tc.IPv6, MACAddress: p.tc.MACAddress,
		CapAdd: caps, CapDrop: []string{"ALL"}, GroupAdd: p.tc.GroupAdd, SecurityOpt: p.tc.SecurityOpt, Sysctls: p.tc.Sysctl, StorageOpt: p.tc.StorageOpt,
		ReadOnlyRoot: p.tc.ReadonlyRootfs, Privileged: p.tc.Privileged, Init: p.tc.Init, TTY: p.tc.TTY, OpenStdin: p.tc.Interactive,
		NoHealthCheck: p.tc.HealthChecks != nil && p.tc.HealthChecks.Disable, Runtime: p.tc.OCIRuntime,
		LogType: logType, LogOptions: logOptions,
	}
	if c.Privileged {
		c.CapAdd, c.CapDrop = nil, nil
	}
	if p.tc.CPUHardLimit {
		c.CPUQuotaUS, c.CPUPeriodUS = cpuQuota(linux.GetPercentTicks(), p.tc.CPUCFSPeriod)
	}
	c.DNS, c.DNSSearch, c.DNSOptions = p.dns()
	r.joinGroup(p, &c)
	for _, name := range slices.Sorted(maps.Keys(p.tc.Ulimit)) {
		limit, err := parseUlimit(name, p.tc.Ulimit[name])
		if err != nil {
			return docker.Container{}, err
		}
		c.Ulimits = append(c.Ulimits, limit)
	}
	p.applyModel(&c, r.options)
	applyAccess(&c, b.access)
	p.applyShare(&c)
	return c, nil
}

// containerMemoryLimits are the hard and the soft limit in bytes, of which 0 is none. memory_hard_limit is the stock
// driver's older word for memory_max: the larger counts.
func containerMemoryLimits(cfg *driverpb.TaskConfig, tc TaskConfig) (limit, reserve int64) {
	limit, reserve = memoryLimit(cfg), memoryReserve(cfg)
	asked := cfg.GetResources().GetAllocatedResources().GetMemory().GetMemoryMb() << 20
	if hard := tc.MemoryHardMiB << 20; limit > 0 && hard > limit {
		limit = hard
		if reserve == 0 && asked < hard {
			reserve = asked
		}
	}
	return limit, reserve
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
	case mode(tc.UTSMode) != "" && !o.AllowPrivileged:
		return refuse("uts_mode", tc.UTSMode, "allow_privileged")
	case mode(tc.UserNSMode) != "" && !o.AllowPrivileged:
		return refuse("userns_mode", tc.UserNSMode, "allow_privileged")
	case mode(tc.CgroupNS) == "host" && !o.AllowPrivileged:
		return refuse("cgroupns", "host", "allow_privileged")
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

// ociRuntime checks the runtime the job asks for. A maker's runtime is for tasks with a card of the brand: others it
// might show every card.
func (r *dockerRuntime) ociRuntime(p *plan) error {
	want := p.tc.OCIRuntime
	if want == "" {
		return nil
	}
	if !slices.Contains(r.options.AllowRuntimes, want) {
		return fmt.Errorf("oci_runtime: %q is not allowed on this node: write one of %s, or have it added to docker { allow_runtimes } in the plugin's config", want, strings.Join(r.options.AllowRuntimes, ", "))
	}
	if v, ok := access.BrandOf(want, r.options.runtimeNames()); ok && !slices.Contains(p.share.vendors(), v) {
		return fmt.Errorf("oci_runtime: %q shows cards of brand %s, and this task was given none: leave it out", want, v)
	}
	return nil
}

// containerPort is where in the container a port of the group leads: where port_map says, else the port's "to", else the
// same number.
func containerPort(p *driverpb.PortMapping, portMap map[string]int) int {
	if to := portMap[p.GetLabel()]; to > 0 {
		return to
	}
	if p.GetTo() > 0 {
		return int(p.GetTo())
	}
	return int(p.GetValue())
}

// portLabels are the ports a task names, in ports and in port_map.
func portLabels(tc TaskConfig) []string {
	labels := slices.Clone(tc.Ports)
	for _, label := range slices.Sorted(maps.Keys(tc.PortMap)) {
		if !slices.Contains(labels, label) {
			labels = append(labels, label)
		}
	}
	return labels
}

// publish maps the ports the task names to those Nomad reserved on the host.
func publish(cfg *driverpb.TaskConfig, tc TaskConfig) ([]docker.Port, error) {
	var out []docker.Port
	var known []string
	for _, p := range cfg.GetResources().GetPorts() {
		known = append(known, p.GetLabel())
	}
	for _, label := range portLabels(tc) {
		at := slices.Index(known, label)
		if at < 0 {
			return nil, fmt.Errorf("ports: the group's network has no port %q: write one of [%s], or add port %q { } to the network block", label, strings.Join(known, ", "), label)
		}
		if strings.EqualFold(tc.NetworkMode, "host") || strings.EqualFold(tc.NetworkMode, "none") {
			continue // nothing to publish: the port is the host's own, or there is no network
		}
		p := cfg.GetResources().GetPorts()[at]
		out = append(out, docker.Port{HostIP: p.GetHostIp(), Host: int(p.GetValue()), Container: containerPort(p, tc.PortMap)})
	}
	return out, nil
}
