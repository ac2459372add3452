package driver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/internal/nomadplugin"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
	"github.com/heteroflow/heteroflow/task-driver/access"
	"github.com/heteroflow/heteroflow/task-driver/docker"
	"github.com/heteroflow/heteroflow/task-driver/docker/dockertest"
)

// dockerRig is a node whose Docker is the fake.
func dockerRig(t testing.TB, options map[string]any) (*rig, *dockertest.Engine) {
	t.Helper()
	fake := dockertest.New(t)
	fake.AddImage("app:1")
	fake.SetRuntimes(append(access.Runtimes(), "runc")...)
	all := map[string]any{"endpoint": fake.Host}
	for k, v := range options {
		all[k] = v
	}
	return newRig(t, map[string]any{"docker": all, "process": map[string]any{"enabled": false}}), fake
}

func app(command ...string) map[string]any {
	return map[string]any{"image": "app:1", "command": command[0], "args": command[1:]}
}

func TestDocker_Life(t *testing.T) {
	t.Parallel()
	r, fake := dockerRig(t, nil)
	j := r.job(app("stubborn"))
	h := r.start(j)
	if err := r.Signal(r.ctx, j.cfg.Id, "SIGUSR1"); err != nil {
		t.Fatal(err)
	}
	h.Config.MsgpackDriverConfig = nil
	r.restart()
	if err := r.Recover(r.ctx, h); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	exit, err := r.ExecStream(r.ctx, j.cfg.Id, &nomadplugin.ExecStream{Command: []string{"cat"}, Stdin: strings.NewReader("in"), Stdout: &out, Stderr: &out})
	if err != nil || exit.ExitCode != 0 || out.String() != "in" {
		t.Errorf("exec = %v, %v, %q", exit, err, out.String())
	}
	ctx, cancel := context.WithCancel(r.ctx)
	if err := r.Stats(ctx, j.cfg.Id, time.Millisecond, func(s *driverpb.TaskStats) error {
		if m := s.AggResourceUsage.Memory; m.Usage != 100<<20 || m.Rss != 60<<20 || m.Cache != 30<<20 || m.Swap != 1<<20 || m.MaxUsage != 120<<20 || len(m.MeasuredFields) != 5 {
			t.Errorf("memory = %v", m)
		}
		cancel()
		return nil
	}); err != nil {
		t.Error(err)
	}
	if err := r.Stop(r.ctx, j.cfg.Id, 50*time.Millisecond, ""); err != nil {
		t.Fatal(err)
	}
	if exit := r.wait(j.cfg.Id); exit.ExitCode != 137 || exit.Signal != 9 {
		t.Errorf("exit = %v", exit)
	}
	if got := <-j.stdout; got != "got USR1\ngot TERM\n" {
		t.Errorf("output = %q", got)
	}
	if err := r.Destroy(r.ctx, j.cfg.Id, true); err != nil {
		t.Fatal(err)
	}
	if n := fake.Containers(); n != 0 {
		t.Errorf("%d containers are left", n)
	}
}

// Where the container's control group can be read, the daemon is asked once, for the container's process.
func TestDocker_StatisticsOfTheKernel(t *testing.T) {
	t.Parallel()
	r, fake := dockerRig(t, nil)
	j := r.job(app("sleep"))
	r.start(j)
	id := r.task(j.cfg.Id).record.Container
	root := t.TempDir()
	group := filepath.Join(root, "sys", "system.slice", "docker-"+id+".scope")
	files := map[string]string{
		filepath.Join(root, "proc", strconv.Itoa(os.Getpid()), "cgroup"): "0::/system.slice/docker-" + id + ".scope\n",
		filepath.Join(group, "memory.current"):                           "104857600\n",
		filepath.Join(group, "memory.stat"):                              "anon 62914560\nfile 1\n",
	}
	cpu := func(usec uint64) {
		files[filepath.Join(group, "cpu.stat")] = fmt.Sprintf("usage_usec %d\nuser_usec %d\nsystem_usec 0\nnr_throttled 3\nthrottled_usec 5\n", usec, usec)
		for path, body := range files {
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(body), 0o644)); err != nil {
				t.Fatal(err)
			}
		}
	}
	cpu(1_000_000)
	runtime := r.runtimes[runtimeDocker].(*dockerRuntime)
	runtime.cgroups, runtime.procfs = filepath.Join(root, "sys"), filepath.Join(root, "proc")
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	looks := 0
	if err := r.Stats(ctx, j.cfg.Id, time.Millisecond, func(s *driverpb.TaskStats) error {
		use := s.AggResourceUsage
		if looks++; looks == 1 {
			if m := use.Memory; m.Usage != 100<<20 || m.Rss != 60<<20 || m.Cache != 1 || use.Cpu.ThrottledPeriods != 3 || use.Cpu.ThrottledTime != 5000 {
				t.Errorf("use = %v", use)
			}
			cpu(3_000_000)
			return nil
		}
		if use.Cpu.Percent <= 0 || use.Cpu.Percent != use.Cpu.UserMode {
			t.Errorf("after two seconds of processor: %v", use.Cpu)
		}
		cancel()
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if fake.Asked("/stats") {
		t.Error("the daemon was asked for statistics")
	}
}

func TestDocker_OutOfMemory(t *testing.T) {
	t.Parallel()
	r, _ := dockerRig(t, nil)
	j := r.job(app("oom"))
	r.start(j)
	if exit := r.wait(j.cfg.Id); !exit.OomKilled || exit.ExitCode != 137 {
		t.Errorf("exit = %v", exit)
	}
}

// What is asked of the daemon, field by field, as it goes over the wire.
func TestDocker_Request(t *testing.T) {
	t.Parallel()
	r, fake := dockerRig(t, map[string]any{"volumes_enabled": true})
	fake.SetRuntimes("runc", "nvidia")
	fake.AddImage("cuda:1")
	srv := t.TempDir()
	j := r.job(map[string]any{
		"image": "app:1", "images": map[string]any{"nvidia": "cuda:1"}, "command": "sleep", "args": []string{"1"}, "entrypoint": []string{"/entry"},
		"ports": []string{"http"}, "labels": map[string]any{"team": "ml", docker.LabelTask: "forged"}, "work_dir": "/srv", "shm_size": "64MiB",
		"extra_hosts": []string{"a:1.2.3.4"}, "readonly_rootfs": true, "cap_drop": []string{"MKNOD"}, "stop_signal": "SIGINT",
		"ulimit": map[string]any{"nofile": "10:20"}, "cpu_hard_limit": true, "pids_limit": 99, "hostname": "box", "init": true,
		"volumes": []string{"local/data:/data:ro", srv + ":/srv"},
		"mount":   []any{map[string]any{"type": "tmpfs", "target": "/cache", "tmpfs_options": map[string]any{"size": 1024}}},
		"env":     map[string]any{"NVIDIA_VISIBLE_DEVICES": "all"},
	}, func(c *driverpb.TaskConfig) {
		c.DeviceEnv = reserve(t, slicesOf(accel.NVIDIA, "GPU-1", 0, 20))
		c.User = "1000:1000"
		c.Resources.Ports = []*driverpb.PortMapping{{Label: "http", Value: 25000, To: 8000, HostIp: "127.0.0.1"}, {Label: "unused", Value: 25001}}
		c.Resources.AllocatedResources.Memory = &driverpb.AllocatedMemoryResources{MemoryMb: 100, MemoryMaxMb: 200}
		c.Resources.LinuxResources.MemoryLimitBytes = 200 << 20
		c.Resources.LinuxResources.CpusetCpus = "0,1"
		c.Mounts = []*driverpb.Mount{{HostPath: srv, TaskPath: "/vol", Readonly: true, PropagationMode: "host-to-task"}}
		c.Devices = []*driverpb.Device{{HostPath: "/dev/null", TaskPath: "/dev/null0", CgroupPermissions: "r"}}
		c.Dns = &driverpb.DNSConfig{Servers: []string{"10.0.0.2"}, Searches: []string{"corp"}}
	})
	_, network, err := r.Start(r.ctx, j.cfg)
	if err != nil {
		t.Fatal(err)
	}
	if network.GetAddr() != "172.17.0.9" || network.GetPortMap()["http"] != 8000 || network.GetAutoAdvertise() {
		t.Errorf("network = %v", network)
	}
	got := fake.Created()
	host, _ := got["HostConfig"].(map[string]any)
	task := filepath.Join(j.cfg.AllocDir, "web")
	for what, c := range map[string]struct{ got, want any }{
		"image":        {got["Image"], "cuda:1"},
		"command":      {got["Cmd"], []any{"sleep", "1"}},
		"entrypoint":   {got["Entrypoint"], []any{"/entry"}},
		"user":         {got["User"], "1000:1000"},
		"work dir":     {got["WorkingDir"], "/srv"},
		"hostname":     {got["Hostname"], "box"},
		"stop signal":  {got["StopSignal"], "SIGINT"},
		"port":         {host["PortBindings"].(map[string]any)["8000/tcp"], []any{map[string]any{"HostIp": "127.0.0.1", "HostPort": "25000"}}},
		"udp port":     {host["PortBindings"].(map[string]any)["8000/udp"], []any{map[string]any{"HostIp": "127.0.0.1", "HostPort": "25000"}}},
		"ports":        {len(host["PortBindings"].(map[string]any)), 2},
		"memory":       {host["Memory"], float64(200 << 20)},
		"swap":         {host["MemorySwap"], float64(200 << 20)},
		"reservation":  {host["MemoryReservation"], float64(100 << 20)},
		"cpu shares":   {host["CpuShares"], float64(500)},
		"cpu quota":    {host["CpuQuota"], float64(25000 * cpus())},
		"cpu set":      {host["CpusetCpus"], "0,1"},
		"pids":         {host["PidsLimit"], float64(99)},
		"shm":          {host["ShmSize"], float64(64 << 20)},
		"hosts":        {host["ExtraHosts"], []any{"a:1.2.3.4"}},
		"dns":          {host["Dns"], []any{"10.0.0.2"}},
		"search":       {host["DnsSearch"], []any{"corp"}},
		"read-only":    {host["ReadonlyRootfs"], true},
		"init":         {host["Init"], true},
		"drop":         {host["CapDrop"], []any{"ALL"}},
		"runtime":      {host["Runtime"], "nvidia"},
		"privileged":   {host["Privileged"], false},
		"log driver":   {host["LogConfig"].(map[string]any)["Type"], "json-file"},
		"device":       {host["Devices"], []any{map[string]any{"PathOnHost": "/dev/null", "PathInContainer": "/dev/null0", "CgroupPermissions": "r"}}},
		"ulimit":       {host["Ulimits"], []any{map[string]any{"Name": "nofile", "Soft": 10.0, "Hard": 20.0}}},
		"own label":    {got["Labels"].(map[string]any)[docker.LabelTask], j.cfg.Id},
		"user's label": {got["Labels"].(map[string]any)["team"], "ml"},
		"nomad label":  {got["Labels"].(map[string]any)["com.hashicorp.nomad.job_id"], "llm"},
	} {
		if diff := cmp.Diff(c.want, c.got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	var mounts []string
	for _, m := range host["Mounts"].([]any) {
		m := m.(map[string]any)
		source, _ := m["Source"].(string)
		line := m["Type"].(string) + " " + source + " " + m["Target"].(string)
		if m["ReadOnly"] == true {
			line += " ro"
		}
		mounts = append(mounts, line)
	}
	want := []string{
		"bind " + j.cfg.AllocDir + "/alloc /alloc", "bind " + task + "/local /local", "bind " + task + "/secrets /secrets",
		"bind " + srv + " /vol ro", "bind " + task + "/local/data /data ro", "bind " + srv + " /srv", "tmpfs  /cache",
	}
	if diff := cmp.Diff(want, mounts); diff != "" {
		t.Errorf("mounts (-want +got):\n%s", diff)
	}
	if _, err := os.Stat(filepath.Join(task, "local/data")); err != nil {
		t.Errorf("the folder of a relative volume: %v", err)
	}
	env, err := json.Marshal(got["Env"])
	if err != nil || !strings.Contains(string(env), `"NVIDIA_VISIBLE_DEVICES=GPU-1"`) || strings.Contains(string(env), "=all") || !strings.Contains(string(env), `"NOMAD_TASK_DIR=/local"`) {
		t.Errorf("env = %s, %v", env, err)
	}
	if caps, _ := json.Marshal(host["CapAdd"]); strings.Contains(string(caps), "MKNOD") || strings.Contains(string(caps), "NET_RAW") || !strings.Contains(string(caps), "CHOWN") {
		t.Errorf("capabilities = %s", caps)
	}
}

func TestDocker_UnlimitedMemory(t *testing.T) {
	t.Parallel()
	cfg := &driverpb.TaskConfig{Resources: &driverpb.Resources{
		AllocatedResources: &driverpb.AllocatedTaskResources{Memory: &driverpb.AllocatedMemoryResources{MemoryMb: 100, MemoryMaxMb: -1}},
		LinuxResources:     &driverpb.LinuxResources{MemoryLimitBytes: 100 << 20},
	}}
	if limit, reserve := memoryLimit(cfg), memoryReserve(cfg); limit != 0 || reserve != 100<<20 {
		t.Errorf("limit %d, reservation %d", limit, reserve)
	}
}

func TestDocker_Refusals(t *testing.T) {
	t.Parallel()
	r, fake := dockerRig(t, nil)
	open, _ := dockerRig(t, map[string]any{"volumes_enabled": true})
	socket := strings.TrimPrefix(fake.Host, "unix://")
	with := func(key string, value any) map[string]any {
		c := app("sleep")
		c[key] = value
		return c
	}
	mount := func(m map[string]any) map[string]any { return with("mount", []any{m}) }
	for name, c := range map[string]struct {
		rig    *rig
		config map[string]any
		change func(*driverpb.TaskConfig)
		want   string
	}{
		"host network":          {config: with("network_mode", "host"), want: "docker { allow_host_network = true }"},
		"another's network":     {config: with("network_mode", "container:abc"), want: "another task's network"},
		"host pid":              {config: with("pid_mode", "host"), want: "docker { allow_host_pid = true }"},
		"another's pid":         {config: with("pid_mode", "container:abc"), want: "would enter another task"},
		"host ipc":              {config: with("ipc_mode", "Host"), want: "docker { allow_host_ipc = true }"},
		"privileged":            {config: with("privileged", true), want: "docker { allow_privileged = true }"},
		"seccomp off":           {config: with("security_opt", []string{"seccomp=unconfined"}), want: "may switch a protection off"},
		"apparmor off":          {config: with("security_opt", []string{"apparmor:unconfined"}), want: "may switch a protection off"},
		"a capability":          {config: with("cap_add", []string{"SYS_ADMIN"}), want: "cap_add: SYS_ADMIN is not allowed"},
		"a runtime":             {config: with("oci_runtime", "kata"), want: `oci_runtime: "kata" is not allowed`},
		"a maker's runtime":     {config: with("oci_runtime", "nvidia"), want: "and this task was given none"},
		"an unknown port":       {config: with("ports", []string{"http"}), want: `the group's network has no port "http"`},
		"docker's socket":       {rig: open, config: with("volumes", []string{"/var/run/docker.sock:/s"}), want: "docker { allow_docker_socket = true }"},
		"docker's other socket": {config: with("volumes", []string{socket + ":/s"}), want: "docker { allow_docker_socket = true }"},
		"socket by mount":       {rig: open, config: mount(map[string]any{"type": "bind", "source": "/run/docker.sock", "target": "/s"}), want: "docker { allow_docker_socket = true }"},
		"host folder":           {config: with("volumes", []string{"/srv:/srv"}), want: "docker { volumes_enabled = true }"},
		"the whole host":        {rig: open, config: with("volumes", []string{"/:/host"}), want: "belongs to the node itself"},
		"all devices":           {rig: open, config: with("volumes", []string{"/dev:/dev"}), want: "/dev belongs to the node itself"},
		"one device":            {rig: open, config: mount(map[string]any{"type": "bind", "source": "/dev/null", "target": "/x"}), want: "/dev belongs to the node itself"},
		"a profile":             {config: with("security_opt", []string{`seccomp={"defaultAction":"SCMP_ACT_ALLOW"}`}), want: "may switch a protection off"},
		"the driver's state":    {rig: open, config: with("volumes", []string{open.state + "/tasks:/x"}), want: "belongs to the node itself"},
		"the node's /var/lib":   {rig: open, config: with("volumes", []string{"/var/lib:/x"}), want: "belongs to the node itself"},
		"named volume":          {config: with("volumes", []string{"data:/data"}), want: "docker { volumes_enabled = true }"},
		"volume of a driver":    {rig: open, config: mount(map[string]any{"target": "/x", "volume_options": map[string]any{"driver_config": map[string]any{"name": "local", "options": map[string]any{"device": "/"}}}}), want: "driver_config can mount any folder"},
		"out by dots":           {config: with("volumes", []string{"../../../etc:/x"}), want: "leaves the task's folder"},
		"another task's folder": {config: with("volumes", []string{"../other/secrets:/x"}), want: "leaves the task's folder"},
		"out by a link": {config: with("volumes", []string{"local/link:/x"}), change: func(c *driverpb.TaskConfig) {
			if err := os.Symlink("/etc", filepath.Join(c.AllocDir, "web/local/link")); err != nil {
				t.Error(err)
			}
		}, want: "leaves the task's folder"},
		"below a link": {config: with("volumes", []string{"local/link/new:/x"}), change: func(c *driverpb.TaskConfig) {
			if err := os.Symlink("/etc", filepath.Join(c.AllocDir, "web/local/link")); err != nil {
				t.Error(err)
			}
		}, want: "leaves the task's folder"},
		"a link to nowhere": {config: with("volumes", []string{"local/link:/x"}), change: func(c *driverpb.TaskConfig) {
			if err := os.Symlink("/no/such/place", filepath.Join(c.AllocDir, "web/local/link")); err != nil {
				t.Error(err)
			}
		}, want: "is a link to nowhere"},
		"not a volume": {config: with("volumes", []string{"data"}), want: `write "source:/target"`},
		"no-new-privileges is fine, the image is not": {config: map[string]any{"image": "absent:1", "security_opt": []string{"no-new-privileges"}, "network_mode": "container:x"}, want: "another task's network"},
		"bad mode": {config: with("volumes", []string{"a:/b:z"}), want: `unknown mode "z"`},
		"a network of another driver": {config: app("sleep"), change: func(c *driverpb.TaskConfig) {
			c.NetworkIsolationSpec = &driverpb.NetworkIsolationSpec{Mode: driverpb.NetworkIsolationSpec_GROUP}
		}, want: "the group's network was made by another driver"},
		"no image for the brand": {config: map[string]any{"images": map[string]any{"ascend": "cann:1"}}, change: func(c *driverpb.TaskConfig) {
			c.DeviceEnv = reserve(t, whole(accel.NVIDIA, "GPU-1"))
		}, want: "there is none for brand nvidia"},
	} {
		t.Run(name, func(t *testing.T) {
			on := r
			if c.rig != nil {
				on = c.rig
			}
			var change []func(*driverpb.TaskConfig)
			if c.change != nil {
				change = append(change, c.change)
			}
			_, _, err := on.Start(on.ctx, on.job(c.config, change...).cfg)
			if err == nil || !strings.Contains(err.Error(), c.want) || nomadplugin.IsRecoverable(err) {
				t.Errorf("start: %v, want %q", err, c.want)
			}
		})
	}
	if n := fake.Containers(); n != 0 {
		t.Errorf("%d containers were made", n)
	}
}

func TestDocker_AllowedByTheAdministrator(t *testing.T) {
	t.Parallel()
	r, fake := dockerRig(t, map[string]any{
		"allow_host_network": true, "allow_host_pid": true, "allow_host_ipc": true, "allow_privileged": true, "allow_docker_socket": true,
		"volumes_enabled": true, "allow_caps": []string{"all"},
	})
	c := app("sleep")
	for k, v := range map[string]any{
		"network_mode": "host", "pid_mode": "host", "ipc_mode": "host", "cap_add": []string{"SYS_ADMIN"}, "security_opt": []string{"seccomp=unconfined"},
		"volumes": []string{"/var/run/docker.sock:/s", "/dev:/host/dev", "named:/data"}, "ports": []string{"http"},
	} {
		c[k] = v
	}
	r.start(r.job(c, func(c *driverpb.TaskConfig) {
		c.Resources.Ports = []*driverpb.PortMapping{{Label: "http", Value: 25000}}
	}))
	host := fake.Created()["HostConfig"].(map[string]any)
	if host["NetworkMode"] != "host" || host["PidMode"] != "host" || host["IpcMode"] != "host" || len(host["PortBindings"].(map[string]any)) != 0 {
		t.Errorf("host config = %v", host)
	}
}

func TestDocker_Pull(t *testing.T) {
	t.Parallel()
	r, fake := dockerRig(t, nil)
	events := make(chan string, 100)
	ctx, cancel := context.WithCancel(r.ctx)
	listening := make(chan error, 1)
	go func() {
		listening <- r.Events(ctx, func(e *driverpb.DriverTaskEvent) error { events <- e.Message; return nil })
	}()
	eventually(t, func() bool { r.events.mu.Lock(); defer r.events.mu.Unlock(); return len(r.events.listeners) == 1 }, "nobody listens")

	fake.Publish("model:2")
	c := app("sleep")
	c["image"] = "model:2"
	r.start(r.job(c))
	for _, want := range []string{"Pulling image model:2", "Pulling image model:2: 10 % of 10.0 MiB"} {
		if got := <-events; got != want {
			t.Errorf("event %q, want %q", got, want)
		}
	}
	cancel()
	if err := <-listening; err != nil {
		t.Error(err)
	}
	c["image"] = "absent:1"
	_, _, err := r.Start(r.ctx, r.job(c, func(c *driverpb.TaskConfig) { c.Id += "x" }).cfg)
	if err == nil || !nomadplugin.IsRecoverable(err) || !strings.Contains(err.Error(), "check the image's name") {
		t.Errorf("an image that is nowhere: %v", err)
	}
	c["image"], c["force_pull"] = "app:1", true // on the node, not in the registry
	r.start(r.job(c, func(c *driverpb.TaskConfig) { c.Id += "y" }))
}

func TestDocker_UnreachableIsRecoverable(t *testing.T) {
	t.Parallel()
	r, fake := dockerRig(t, nil)
	fake.Down()
	_, _, err := r.Start(r.ctx, r.job(app("sleep"), func(c *driverpb.TaskConfig) { c.DeviceEnv = reserve(t, whole(accel.NVIDIA, "GPU-1")) }).cfg)
	if err == nil || !nomadplugin.IsRecoverable(err) || !strings.Contains(err.Error(), "systemctl start docker") {
		t.Errorf("start: %v", err)
	}
	if f := r.look(r.ctx); f.Health != driverpb.FingerprintResponse_UNHEALTHY || f.Attributes["driver.heteroflow.runtime.docker"].GetStringVal() != "" {
		t.Errorf("health = %v, %v", f.Health, f.Attributes)
	}
	if leases, err := grant.Leases(filepath.Join(r.state, "leases")); err != nil || len(leases) != 0 {
		t.Errorf("leases = %v, %v", leases, err)
	}
	fake.Up()
	if f := r.look(r.ctx); f.Health != driverpb.FingerprintResponse_HEALTHY || f.Attributes["driver.heteroflow.runtime.docker.version"].GetStringVal() != "99.1.0" {
		t.Errorf("health = %v %q", f.Health, f.HealthDescription)
	}
	r.start(r.job(app("sleep"), func(c *driverpb.TaskConfig) { c.Id += "2" }))
}

// A daemon that goes away takes no task along: what runs, runs on, is told as soon as the daemon is back, and is stopped then.
func TestDocker_UnreachableUnderARunningTask(t *testing.T) {
	t.Parallel()
	r, fake := dockerRig(t, nil)
	j := r.job(app("stubborn"))
	r.start(j)
	if err := r.Signal(r.ctx, j.cfg.Id, "SIGHUP"); err != nil {
		t.Fatal(err)
	}
	fake.Down()
	if f := r.look(r.ctx); f.Health != driverpb.FingerprintResponse_UNHEALTHY {
		t.Errorf("health = %v", f.Health)
	}
	for what, err := range map[string]error{
		"signal": r.Signal(r.ctx, j.cfg.Id, "SIGUSR1"), "stop": r.Stop(r.ctx, j.cfg.Id, time.Second, ""),
	} {
		if err == nil || !strings.Contains(err.Error(), "systemctl start docker") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, _, _, err := r.Exec(r.ctx, j.cfg.Id, []string{"echo"}, time.Minute); err == nil {
		t.Error("exec without a daemon")
	}
	if r.task(j.cfg.Id).hasEnded() {
		t.Error("the task ended with the daemon")
	}
	fake.Up()
	if err := r.Signal(r.ctx, j.cfg.Id, "SIGUSR1"); err != nil {
		t.Fatal(err)
	}
	if err := r.Stop(r.ctx, j.cfg.Id, 0, ""); err != nil {
		t.Fatal(err)
	}
	if exit := r.wait(j.cfg.Id); exit.ExitCode != 137 {
		t.Errorf("exit = %v", exit)
	}
	if out := <-j.stdout; out != "got HUP\ngot USR1\n" {
		t.Errorf("each line once, in order; got %q", out)
	}
}

func TestDocker_EveryStepMayFail(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]dockertest.Fault{
		"info": {Match: "GET /info"}, "image": {Match: "GET /images/"}, "create": {Match: "POST /containers/create"},
		"start": {Match: "POST /containers/.*/start"}, "inspect": {Match: "GET /containers/.*/json"}, "list": {Match: "GET /containers/json", Times: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, fake := dockerRig(t, nil)
			fault.Status, fault.Text = 500, "it is broken"
			fake.Break(fault)
			j := r.job(app("sleep"), func(c *driverpb.TaskConfig) { c.DeviceEnv = reserve(t, whole(accel.NVIDIA, "GPU-1")) })
			if _, _, err := r.Start(r.ctx, j.cfg); err == nil || !strings.Contains(err.Error(), "it is broken") {
				t.Errorf("start: %v", err)
			}
			fake.Repair()
			leases, err := grant.Leases(filepath.Join(r.state, "leases"))
			if err != nil || len(leases) != 0 || fake.Containers() != 0 {
				t.Errorf("left over: %d containers, leases %v, %v", fake.Containers(), leases, err)
			}
			again := r.job(app("echo", "fine"), func(c *driverpb.TaskConfig) { c.Id = j.cfg.Id })
			r.start(again)
			if exit := r.wait(j.cfg.Id); exit.ExitCode != 0 {
				t.Errorf("the second try ended with %v", exit)
			}
		})
	}
}

func TestDocker_SupervisorKilledIsReplaced(t *testing.T) {
	t.Parallel()
	r, fake := dockerRig(t, nil)
	j := r.job(app("stubborn"))
	r.start(j)
	tk := r.task(j.cfg.Id)
	first := tk.supervised()
	signal := func(name string) {
		t.Helper()
		if err := r.Signal(r.ctx, j.cfg.Id, name); err != nil {
			t.Fatal(err)
		}
	}
	signal("HUP")
	mark := filepath.Join(tk.dir, docker.MarkFile)
	eventually(t, func() bool { return !docker.ReadMark(mark).IsZero() }, "how far the output was written is not noted")
	if err := first.Supervisor.Signal(9); err != nil {
		t.Fatal(err)
	}
	signal("USR1")
	eventually(t, func() bool {
		now := r.task(j.cfg.Id).supervised()
		return now.Supervisor != first.Supervisor && now.Supervisor.Alive()
	}, "no new supervisor")
	if err := r.Stop(r.ctx, j.cfg.Id, 0, ""); err != nil {
		t.Fatal(err)
	}
	if exit := r.wait(j.cfg.Id); exit.ExitCode != 137 {
		t.Errorf("exit = %v", exit)
	}
	if out := <-j.stdout; out != "got HUP\ngot USR1\n" {
		t.Errorf("output = %q", out)
	}
	starts := 0
	for _, line := range fake.Requests() {
		if strings.HasPrefix(line, "POST /containers/") && strings.HasSuffix(line, "/start") {
			starts++
		}
	}
	if starts != 1 {
		t.Errorf("the container was started %d times", starts)
	}
}

func TestDocker_RecoverWithoutStateFolder(t *testing.T) {
	t.Parallel()
	r, _ := dockerRig(t, nil)
	j := r.job(app("sleep"))
	h := r.start(j)
	status := r.task(j.cfg.Id).supervised()
	r.Close()
	if err := status.Supervisor.Signal(9); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(r.state, "tasks")); err != nil {
		t.Fatal(err)
	}
	r.restart()
	if err := r.Recover(r.ctx, h); err != nil {
		t.Fatal(err)
	}
	if err := r.Stop(r.ctx, j.cfg.Id, time.Minute, ""); err != nil {
		t.Fatal(err)
	}
	if exit := r.wait(j.cfg.Id); exit.ExitCode != 143 {
		t.Errorf("exit = %v", exit)
	}
}

func TestDocker_ContainerRemovedBehindOurBack(t *testing.T) {
	t.Parallel()
	r, fake := dockerRig(t, nil)
	j := r.job(app("sleep"))
	h := r.start(j)
	fake.Kill(r.task(j.cfg.Id).record.Container)
	if exit, err := r.Wait(r.ctx, j.cfg.Id); err == nil || exit.GetExitCode() == 0 {
		t.Errorf("wait = %v, %v", exit, err)
	}
	if err := r.Destroy(r.ctx, j.cfg.Id, true); err != nil {
		t.Fatal(err)
	}
	if err := r.Recover(r.ctx, h); err == nil || !strings.Contains(err.Error(), "the container is gone") {
		t.Errorf("recover of a destroyed task: %v", err)
	}
}

func TestDocker_DestroyIsTriedAgain(t *testing.T) {
	t.Parallel()
	r, fake := dockerRig(t, nil)
	j := r.job(app("sleep"), func(c *driverpb.TaskConfig) { c.DeviceEnv = reserve(t, whole(accel.NVIDIA, "GPU-1")) })
	r.start(j)
	leases := func() int {
		t.Helper()
		all, err := grant.Leases(filepath.Join(r.state, "leases"))
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	fake.Down()
	if err := r.Destroy(r.ctx, j.cfg.Id, true); err == nil || leases() != 1 {
		t.Errorf("destroy without a daemon: %v, %d leases: the card is not free", err, leases())
	}
	r.retryDestroys(r.ctx)
	if leases() != 1 {
		t.Error("the lease went while the container may still run")
	}
	fake.Up()
	r.retryDestroys(r.ctx)
	if leases() != 0 || fake.Containers() != 0 {
		t.Errorf("left over: %d leases, %d containers", leases(), fake.Containers())
	}
}

func TestDocker_SweepTouchesOnlyOurs(t *testing.T) {
	t.Parallel()
	r, fake := dockerRig(t, nil)
	old := time.Now().Add(-time.Hour)
	fake.Seed("ours", map[string]string{docker.LabelState: r.state, docker.LabelTask: "gone/task/1"}, old)
	fake.Seed("another-node", map[string]string{docker.LabelState: "/other", docker.LabelTask: "their/task/1"}, old)
	fake.Seed("a-user's", nil, old)
	j := r.job(app("sleep"))
	r.start(j)
	r.sweepContainers(r.ctx, time.Now().Add(-time.Minute))
	if fake.Containers() != 3 || !fake.Asked("DELETE /containers/ours") || fake.Asked("DELETE /containers/(another|a-user)") {
		t.Errorf("%d containers left; requests %v", fake.Containers(), fake.Requests())
	}
}

func TestRealPath(t *testing.T) {
	t.Parallel()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dir, filepath.Join(dir, "loop")); err != nil {
		t.Fatal(err)
	}
	for in, want := range map[string]string{
		dir + "/a/b": dir + "/a/b", dir + "/loop/loop/x": dir + "/x", "/": "/",
	} {
		if got, err := realPath(in); err != nil || got != want {
			t.Errorf("realPath(%s) = %s, %v; want %s", in, got, err, want)
		}
	}
}

// The same life on a real daemon, where one is reachable.
func TestDocker_Real(t *testing.T) {
	host := dockertest.Real(t)
	r := newRig(t, map[string]any{"docker": map[string]any{"endpoint": host, "allow_devices": []string{"/dev/full"}}, "process": map[string]any{"enabled": false}})
	run := func(t *testing.T, config map[string]any, change ...func(*driverpb.TaskConfig)) (*driverpb.ExitResult, string) {
		t.Helper()
		config["image"], config["network_mode"] = dockertest.Image, "none"
		j := r.job(config, change...)
		r.start(j)
		exit := r.wait(j.cfg.Id)
		out := <-j.stdout
		if err := r.Destroy(r.ctx, j.cfg.Id, true); err != nil {
			t.Fatal(err)
		}
		return exit, out
	}
	t.Run("environment over the image's", func(t *testing.T) {
		_, out := run(t, map[string]any{"args": []string{"env"}})
		if !strings.Contains(out, "FROM_IMAGE=yes\n") || !strings.Contains(out, "NVIDIA_VISIBLE_DEVICES=void\n") {
			t.Errorf("output %q", out)
		}
		_, out = run(t, map[string]any{"args": []string{"env"}}, func(c *driverpb.TaskConfig) { c.DeviceEnv = reserve(t, whole(accel.NVIDIA, "SIM-9")) })
		if !strings.Contains(out, "NVIDIA_VISIBLE_DEVICES=SIM-9\n") {
			t.Errorf("output %q", out)
		}
	})
	t.Run("folders", func(t *testing.T) {
		_, out := run(t, map[string]any{"args": []string{"cat", "/local/in.txt"}}, func(c *driverpb.TaskConfig) {
			if err := os.WriteFile(filepath.Join(c.AllocDir, "web/local/in.txt"), []byte("from the task's folder"), 0o644); err != nil {
				t.Fatal(err)
			}
		})
		if out != "from the task's folder" {
			t.Errorf("output %q", out)
		}
	})
	t.Run("model", func(t *testing.T) {
		url, _ := modelServer(t, "")
		_, out := run(t, withModel(map[string]any{"args": []string{"cat", "/models/llama.gguf"}}, url+"/llama.gguf", modelSum(modelText), ""))
		if out != modelText {
			t.Errorf("output %q", out)
		}
		exit, _ := run(t, withModel(map[string]any{"args": []string{"write", "/models/llama.gguf", "y"}}, url+"/llama.gguf", modelSum(modelText), ""))
		if exit.ExitCode == 0 {
			t.Error("the model was written to")
		}
	})
	t.Run("read-only root", func(t *testing.T) {
		exit, _ := run(t, map[string]any{"args": []string{"write", "/x", "y"}, "readonly_rootfs": true})
		if exit.ExitCode == 0 {
			t.Error("the root was written to")
		}
	})
	t.Run("out of memory", func(t *testing.T) {
		exit, _ := run(t, map[string]any{"args": []string{"oom"}}, func(c *driverpb.TaskConfig) { c.Resources.LinuxResources.MemoryLimitBytes = 48 << 20 })
		if !exit.OomKilled || exit.ExitCode == 0 {
			t.Errorf("exit = %v", exit)
		}
	})
	t.Run("options", func(t *testing.T) { realOptions(t, run) })
	t.Run("terminal", func(t *testing.T) {
		if _, out := run(t, map[string]any{"args": []string{"echo", "hello"}, "tty": true}); out != "hello\r\n" {
			t.Errorf("output %q", out)
		}
	})
	t.Run("a device", func(t *testing.T) {
		config := func() map[string]any {
			return map[string]any{"args": []string{"write", "/dev/none", "x"}, "devices": []any{map[string]any{"host_path": "/dev/full", "container_path": "/dev/none"}}}
		}
		if exit, _ := run(t, config()); exit.ExitCode == 0 {
			t.Error("the device did not refuse to be written to")
		}
	})
	t.Run("driver killed", func(t *testing.T) {
		j := r.job(map[string]any{"image": dockertest.Image, "network_mode": "none", "args": []string{"sleep"}})
		h := r.start(j)
		r.restart()
		if err := r.Recover(r.ctx, h); err != nil {
			t.Fatal(err)
		}
		out, _, exit, err := r.Exec(r.ctx, j.cfg.Id, []string{"/hftask", "echo", "inside"}, time.Minute)
		if err != nil || exit.ExitCode != 0 || string(out) != "inside\n" {
			t.Errorf("exec = %v, %v, %q", exit, err, out)
		}
		if pids, err := (shareTasks{r.Driver}).PIDs(r.ctx, j.cfg.Id); err != nil || len(pids) != 1 {
			t.Errorf("processes: %v, %v", pids, err)
		}
		if err := r.Stop(r.ctx, j.cfg.Id, time.Minute, ""); err != nil {
			t.Fatal(err)
		}
		if exit := r.wait(j.cfg.Id); exit.ExitCode != 143 {
			t.Errorf("exit = %v", exit)
		}
		if err := r.Destroy(r.ctx, j.cfg.Id, true); err != nil {
			t.Fatal(err)
		}
	})
}

// realOptions asks the kernel what became of options.
func realOptions(t *testing.T, run func(*testing.T, map[string]any, ...func(*driverpb.TaskConfig)) (*driverpb.ExitResult, string)) {
	for name, c := range map[string]struct {
		file    string
		options map[string]any
		want    []string
		not     string
	}{
		"ulimit": {file: "/proc/self/limits", options: map[string]any{"ulimit": map[string]any{"core": "1234:2345"}}, want: []string{"1234                 2345"}},
		"mounts": {
			file: "/proc/self/mounts", want: []string{"tmpfs /cache tmpfs ", "size=1024k", "/dev/shm tmpfs ", "size=131072k"},
			options: map[string]any{"shm_size": "128MiB", "mount": []any{map[string]any{"type": "tmpfs", "target": "/cache", "tmpfs_options": map[string]any{"size": 1 << 20}}}},
		},
		"hosts":    {file: "/etc/hosts", options: map[string]any{"extra_hosts": []string{"db:10.1.2.3"}}, want: []string{"10.1.2.3\tdb"}},
		"hostname": {file: "/etc/hostname", options: map[string]any{"hostname": "box"}, want: []string{"box"}},
		"sysctl":   {file: "/proc/sys/kernel/shm_rmid_forced", options: map[string]any{"sysctl": map[string]any{"kernel.shm_rmid_forced": "1"}}, want: []string{"1\n"}},
		"status": {
			file: "/proc/self/status", want: []string{"NoNewPrivs:\t1", "Uid:\t1000", "Groups:\t1000 4444", "Cpus_allowed_list:\t0\n", "CapBnd:\t00000000800405fb"},
			options: map[string]any{"security_opt": []string{"no-new-privileges"}, "group_add": []string{"4444"}, "cap_drop": []string{"MKNOD", "AUDIT_WRITE"}},
		},
		"no more capabilities": {file: "/proc/self/status", options: map[string]any{"cap_drop": []string{"all"}}, want: []string{"CapBnd:\t0000000000000000"}},
		"oom score":            {file: "/proc/self/oom_score_adj", options: map[string]any{"oom_score_adj": 300}, want: []string{"300\n"}},
		"init":                 {file: "/proc/1/comm", options: map[string]any{"init": true}, want: []string{"init"}, not: "hftask"},
	} {
		t.Run(name, func(t *testing.T) {
			c.options["args"] = []string{"cat", c.file}
			exit, out := run(t, c.options, func(cfg *driverpb.TaskConfig) {
				cfg.User = "1000:1000"
				cfg.Resources.LinuxResources.CpusetCpus = "0"
			})
			if name == "init" && exit.ExitCode != 0 {
				t.Skip("this daemon has no docker-init")
			}
			for _, want := range c.want {
				if !strings.Contains(out, want) {
					t.Errorf("%s lacks %q (%v):\n%s", c.file, want, exit, out)
				}
			}
			if c.not != "" && strings.Contains(out, c.not) {
				t.Errorf("%s has %q", c.file, c.not)
			}
		})
	}
}
