package client

import (
	"context"
	"fmt"
	"maps"
	"os"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/nomadplugin/devicepb"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/host"
)

// nullDevice is where the output of a task goes whose log is disabled.
const nullDevice = "/dev/null"

// prepare does what comes before a start: folders, log collector, devices, environment, templates, config.
func (t *taskRunner) prepare(ctx context.Context, inst *driverInstance) (*driverpb.TaskConfig, error) {
	ar := t.alloc
	dir := ar.dir
	alloc, tg := ar.desired()
	if err := supported(tg, t.task); err != nil {
		return nil, err
	}
	if err := dir.buildTask(t.task.Name); err != nil {
		return nil, err
	}
	if err := writePayload(dir, t.task, alloc.Job.Payload); err != nil {
		return nil, err
	}
	if t.logs != nil {
		if err := t.logs.ensure(); err != nil {
			return nil, err
		}
	}
	deviceEnv, err := t.reserve(ctx)
	if err != nil {
		return nil, err
	}
	node := ar.client.node()
	fs := inst.caps.GetFsIsolation()
	paths := pathsFor(dir, t.task.Name, fs)
	var inherited map[string]string
	if fs == driverpb.DriverCapabilities_NONE {
		inherited = hostEnv()
	}
	nomad := nomadEnv(alloc, tg, t.task, ar.client.cfg.Node, paths)
	env := taskEnv(inherited, nomad, t.task.Env, deviceEnv, nil, node)
	templated, err := renderTemplates(t.task.Templates, dir, t.task.Name, paths, interpolator{node: node, env: env})
	if err != nil {
		return nil, err
	}
	env = taskEnv(inherited, nomad, t.task.Env, deviceEnv, templated, node)
	config, _ := interpolator{node: node, env: env}.value(t.task.Config).(map[string]any)
	doc, err := host.EncodeConfig(inst.schema, config)
	if err != nil {
		return nil, fmt.Errorf("config of task %s: %w", t.task.Name, err)
	}
	id, err := newTaskID(alloc.ID, t.task.Name)
	if err != nil {
		return nil, err
	}
	return t.config(id, doc, env, deviceEnv, alloc, tg), nil
}

// supported refuses what this engine would otherwise leave out in silence.
func supported(tg *api.TaskGroup, task *api.Task) error {
	for _, what := range []struct {
		name string
		used bool
	}{
		{"artifact", len(task.Artifacts) > 0},
		{"vault", task.Vault != nil},
		{"volume_mount", len(task.VolumeMounts) > 0},
		{"csi_plugin", task.CSIPluginConfig != nil},
		{"secret", len(task.Secrets) > 0},
	} {
		if what.used {
			return fmt.Errorf("task %s has a %s block: the embedded engine has none, run the job on Nomad", task.Name, what.name)
		}
	}
	for _, n := range tg.Networks {
		if n.Mode != "" && n.Mode != "host" {
			return fmt.Errorf("group %s has network mode %q: the embedded engine has only host, run the job on Nomad", deref(tg.Name, ""), n.Mode)
		}
	}
	return nil
}

// writePayload puts the payload of a dispatched job where the task expects it.
func writePayload(dir allocDir, task *api.Task, payload []byte) error {
	if task.DispatchPayload == nil || len(payload) == 0 {
		return nil
	}
	root, err := os.OpenRoot(dir.local(task.Name))
	if err != nil {
		return fmt.Errorf("write dispatch payload: %w", err)
	}
	defer root.Close()
	if err := root.WriteFile(task.DispatchPayload.File, payload, 0o644); err != nil {
		return fmt.Errorf("write dispatch payload: %w", err)
	}
	return nil
}

func (t *taskRunner) config(id string, doc []byte, env, deviceEnv map[string]string, alloc *api.Allocation, tg *api.TaskGroup) *driverpb.TaskConfig {
	ar := t.alloc
	cfg := &driverpb.TaskConfig{
		Id: id, Name: t.task.Name, MsgpackDriverConfig: doc, Env: env, DeviceEnv: deviceEnv, User: t.task.User, AllocDir: ar.dir.root,
		TaskGroupName: alloc.TaskGroup, JobName: deref(alloc.Job.Name, alloc.JobID), JobId: alloc.JobID, AllocId: alloc.ID,
		Namespace: alloc.Namespace, NodeName: ar.client.cfg.Node.Name, NodeId: ar.client.cfg.Node.ID,
		StdoutPath: nullDevice, StderrPath: nullDevice,
		Resources: taskConfigResources(alloc, t.task.Name, ar.client.cfg.Node.HostIP, ar.client.machine.cpuMHz),
	}
	if t.logs != nil {
		cfg.StdoutPath, cfg.StderrPath = ar.dir.fifo(t.task.Name, "stdout"), ar.dir.fifo(t.task.Name, "stderr")
	}
	t.mu.Lock()
	cfg.Mounts, cfg.Devices = t.mounts, t.devices
	t.mu.Unlock()
	for _, n := range tg.Networks {
		if n.DNS != nil {
			cfg.Dns = &driverpb.DNSConfig{Servers: n.DNS.Servers, Searches: n.DNS.Searches, Options: n.DNS.Options}
		}
	}
	return cfg
}

func taskConfigResources(alloc *api.Allocation, task, hostIP string, nodeMHz int) *driverpb.Resources {
	out := &driverpb.Resources{AllocatedResources: &driverpb.AllocatedTaskResources{
		Cpu: &driverpb.AllocatedCpuResources{}, Memory: &driverpb.AllocatedMemoryResources{},
	}, LinuxResources: &driverpb.LinuxResources{}}
	for _, p := range allocPorts(alloc, hostIP) {
		out.Ports = append(out.Ports, &driverpb.PortMapping{Label: p.Label, Value: int32(p.Value), To: int32(p.To), HostIp: p.HostIP})
	}
	r := taskResources(alloc, task)
	if r == nil {
		return out
	}
	out.AllocatedResources.Cpu.CpuShares = r.Cpu.CpuShares
	out.AllocatedResources.Memory.MemoryMb, out.AllocatedResources.Memory.MemoryMaxMb = r.Memory.MemoryMB, r.Memory.MemoryMaxMB
	for _, n := range r.Networks {
		out.AllocatedResources.Networks = append(out.AllocatedResources.Networks, networkResource(n))
	}
	out.LinuxResources.CpuShares = r.Cpu.CpuShares
	out.LinuxResources.MemoryLimitBytes = max(r.Memory.MemoryMB, r.Memory.MemoryMaxMB) << 20
	var cores []string
	for _, c := range r.Cpu.ReservedCores {
		cores = append(cores, fmt.Sprint(c))
	}
	out.LinuxResources.CpusetCpus = strings.Join(cores, ",")
	if nodeMHz > 0 {
		out.LinuxResources.PercentTicks = float64(r.Cpu.CpuShares) / float64(nodeMHz)
	}
	return out
}

func networkResource(n *api.NetworkResource) *driverpb.NetworkResource {
	ports := func(in []api.Port) (out []*driverpb.NetworkPort) {
		for _, p := range in {
			out = append(out, &driverpb.NetworkPort{Label: p.Label, Value: int32(p.Value)})
		}
		return out
	}
	return &driverpb.NetworkResource{
		Device: n.Device, Cidr: n.CIDR, Ip: n.IP, Mbits: int32(n.Megabits()), ReservedPorts: ports(n.ReservedPorts), DynamicPorts: ports(n.DynamicPorts),
	}
}

// reserve asks the device plugins for the task's devices, once in the allocation's life: later starts keep the
// environment that came back then.
func (t *taskRunner) reserve(ctx context.Context) (map[string]string, error) {
	if st := t.snapshot(); st.Reserved {
		return st.DeviceEnv, nil
	}
	alloc, _ := t.alloc.desired()
	r := taskResources(alloc, t.task.Name)
	if r == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, reserveTimeout)
	defer cancel()
	env := map[string]string{}
	for _, d := range r.Devices {
		plugin := t.alloc.client.deviceOwner(d)
		if plugin == nil {
			return nil, fmt.Errorf("unknown device %s/%s/%s with instances %v", d.Vendor, d.Type, d.Name, d.DeviceIDs)
		}
		res, err := plugin.reserve(ctx, d.DeviceIDs)
		if err != nil {
			return nil, err
		}
		maps.Copy(env, res.GetEnvs())
		t.keepNodes(res)
	}
	t.update(func(s *taskState) { s.Reserved, s.DeviceEnv = true, env })
	return env, nil
}

// keepNodes remembers mounts and device nodes for as long as this engine runs. Like in Nomad they are gone after a
// restart of the engine, which is why our own device plugin returns none.
func (t *taskRunner) keepNodes(res *devicepb.ContainerReservation) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range res.GetMounts() {
		t.mounts = append(t.mounts, &driverpb.Mount{TaskPath: m.GetTaskPath(), HostPath: m.GetHostPath(), Readonly: m.GetReadOnly()})
	}
	for _, d := range res.GetDevices() {
		t.devices = append(t.devices, &driverpb.Device{TaskPath: d.GetTaskPath(), HostPath: d.GetHostPath(), CgroupPermissions: d.GetPermissions()})
	}
}
