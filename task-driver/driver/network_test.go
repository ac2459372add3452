package driver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
	"github.com/heteroflow/heteroflow/task-driver/docker"
	"github.com/heteroflow/heteroflow/task-driver/docker/dockertest"
)

// inGroup puts a task into a network of its group, as Nomad hands it over once it has connected it.
func inGroup(spec *driverpb.NetworkIsolationSpec) func(*driverpb.TaskConfig) {
	return func(c *driverpb.TaskConfig) {
		spec.HostsConfig = &driverpb.HostsConfig{Hostname: "web-1", Address: "172.26.64.7"}
		c.NetworkIsolationSpec = spec
		c.Resources.Ports = []*driverpb.PortMapping{{Label: "http", Value: 21000, To: 8080, HostIp: "10.0.0.5"}}
	}
}

func TestNetwork_Life(t *testing.T) {
	t.Parallel()
	r, fake := dockerRig(t, nil)
	if c := r.Capabilities(); !c.MustCreateNetwork || len(c.NetworkIsolationModes) != 2 || c.NetworkIsolationModes[1] != driverpb.NetworkIsolationSpec_GROUP {
		t.Errorf("capabilities: %v", c)
	}
	spec, created, err := r.CreateNetwork(r.ctx, allocID, "web-1")
	if err != nil || !created || spec.Mode != driverpb.NetworkIsolationSpec_GROUP || !strings.HasPrefix(spec.Path, "/var/run/docker/netns/") || spec.Labels[labelHolder] == "" {
		t.Fatalf("made %v, %v, %v", spec, created, err)
	}
	held := fake.Created()
	if held["Image"] != docker.PauseImage || held["Hostname"] != "web-1" || held["HostConfig"].(map[string]any)["NetworkMode"] != "none" || held["HostConfig"].(map[string]any)["ReadonlyRootfs"] != true {
		t.Errorf("the holding container: %v", held)
	}
	r.restart() // the agent was started anew, and asks again
	again, created, err := r.CreateNetwork(r.ctx, allocID, "web-1")
	if err != nil || created || again.Path != spec.Path || again.Labels[labelHolder] != spec.Labels[labelHolder] {
		t.Fatalf("found %v, %v, %v", again, created, err)
	}

	config := with(map[string]any{"ports": []string{"http"}, "extra_hosts": []string{"db:10.1.2.3"}, "dns_servers": []string{"10.9.9.9"}})
	j := r.job(config, inGroup(spec), func(c *driverpb.TaskConfig) {
		c.Dns = &driverpb.DNSConfig{Servers: []string{"10.0.0.1"}, Searches: []string{"svc"}}
	})
	_, override, err := r.Start(r.ctx, j.cfg)
	if err != nil {
		t.Fatal(err)
	}
	got := fake.Created()
	host := got["HostConfig"].(map[string]any)
	for what, pair := range map[string][2]any{
		"network mode": {host["NetworkMode"], "container:" + spec.Labels[labelHolder]}, "extra hosts": {host["ExtraHosts"], nil}, "servers": {host["Dns"], nil},
		"ports": {len(host["PortBindings"].(map[string]any)), 0}, "hostname": {got["Hostname"], ""},
	} {
		if diff := cmp.Diff(pair[1], pair[0]); diff != "" && !(pair[1] == nil && len(pair[0].([]any)) == 0) {
			t.Errorf("%s (-want +got)\n%s", what, diff)
		}
	}
	if override != nil {
		t.Errorf("an address of its own: %v", override)
	}
	texts := map[string]string{}
	for _, m := range host["Mounts"].([]any) {
		m := m.(map[string]any)
		if target := m["Target"].(string); strings.HasPrefix(target, "/etc/") {
			body, err := os.ReadFile(m["Source"].(string))
			if err != nil {
				t.Error(err)
			}
			texts[target] = string(body)
		}
	}
	if h := texts["/etc/hosts"]; !strings.Contains(h, "172.26.64.7 web-1\n") || !strings.Contains(h, "10.1.2.3 db\n") || !strings.HasPrefix(h, "127.0.0.1 localhost\n") {
		t.Errorf("hosts: %q", h)
	}
	if got, want := texts["/etc/resolv.conf"], "nameserver 10.9.9.9\nsearch svc\n"; got != want {
		t.Errorf("resolv.conf: %q, want %q", got, want)
	}
	for port, want := range map[string]string{"http": "172.26.64.7:8080", "9000": "172.26.64.7:9000"} {
		if got, err := (probed{r.task(j.cfg.Id)}).Address(r.ctx, port); err != nil || got != want {
			t.Errorf("port %s is asked at %s, %v, want %s", port, got, err, want)
		}
	}
	if err := r.Destroy(r.ctx, j.cfg.Id, true); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := r.DestroyNetwork(r.ctx, allocID, spec); err != nil {
			t.Fatal(err)
		}
	}
	if n := fake.Containers(); n != 0 {
		t.Errorf("%d containers are left", n)
	}
}

// On a real daemon the image is made on the spot, its program waits, and the task's container is in the same name space.
func TestNetwork_RealDocker(t *testing.T) {
	t.Parallel()
	r := newRig(t, map[string]any{"docker": map[string]any{"endpoint": dockertest.Real(t)}, "process": map[string]any{"enabled": false}})
	spec, _, err := r.CreateNetwork(r.ctx, allocID, "web-1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.DestroyNetwork(context.WithoutCancel(r.ctx), allocID, spec); err != nil {
			t.Error(err)
		}
	})
	j := r.job(map[string]any{"image": dockertest.Image, "args": []string{"sleep"}, "extra_hosts": []string{"db:10.1.2.3"}}, inGroup(spec))
	r.start(j)
	run := r.runtimes[runtimeDocker].(*dockerRuntime)
	var spaces []string
	for _, id := range []string{spec.Labels[labelHolder], r.task(j.cfg.Id).record.Container} {
		state, err := run.engine.State(r.ctx, id)
		if err != nil || !state.Running {
			t.Fatalf("container %s: %+v, %v", id, state, err)
		}
		space, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", state.PID))
		if err != nil {
			t.Fatal(err)
		}
		spaces = append(spaces, space)
	}
	if spaces[0] != spaces[1] {
		t.Errorf("the task is in %s, its group in %s", spaces[1], spaces[0])
	}
	if again, created, err := r.CreateNetwork(r.ctx, allocID, "web-1"); err != nil || created || again.Path != spec.Path {
		t.Errorf("found %v, %v, %v", again, created, err)
	}
}

func TestNetwork_Refusals(t *testing.T) {
	t.Parallel()
	r, fake := dockerRig(t, nil)
	spec, _, err := r.CreateNetwork(r.ctx, allocID, "")
	if err != nil {
		t.Fatal(err)
	}
	for option, c := range map[string]struct {
		value any
		want  string
	}{
		"hostname": {"me", "write network { hostname"}, "mac_address": {"02:42:ac:11:00:02", "leave it out"},
		"extra_hosts": {[]string{"x:host-gateway"}, "host-gateway is not known"}, "advertise_ipv6_address": {true, "address_mode"},
	} {
		refusedStart(t, r, with(map[string]any{option: c.value}), c.want, inGroup(spec))
	}
	fake.Kill(spec.Labels[labelHolder])
	refusedStart(t, r, app("sleep"), "the allocation must be replaced", inGroup(spec))
	fresh, created, err := r.CreateNetwork(r.ctx, allocID, "")
	if err != nil || !created || fresh.Labels[labelHolder] == spec.Labels[labelHolder] {
		t.Errorf("after its holder had ended: %v, %v, %v", fresh, created, err)
	}
	own, host := made(t, r, fake, with(map[string]any{"network_mode": "none", "hostname": "me"}), inGroup(fresh))
	if host["NetworkMode"] != "none" || own["Hostname"] != "me" {
		t.Errorf("a task with a network of its own: %v", host["NetworkMode"])
	}
	processes := newRig(t, nil)
	refusedStart(t, processes, map[string]any{"runtime": "process", "command": "/bin/true"}, "the process runtime has the host's network", inGroup(fresh))
	if c := processes.Capabilities(); c.MustCreateNetwork || len(c.NetworkIsolationModes) != 1 {
		t.Errorf("capabilities without containers: %v", c)
	}
	if _, _, err := processes.CreateNetwork(r.ctx, allocID, ""); err == nil || !strings.Contains(err.Error(), `runtime "docker" is switched off`) {
		t.Errorf("a network without containers: %v", err)
	}
}

func TestNetwork_InfraImage(t *testing.T) {
	t.Parallel()
	r, fake := dockerRig(t, map[string]any{"infra_image": "registry.example/pause:3", "infra_image_pull_timeout": "1m"})
	if _, _, err := r.CreateNetwork(r.ctx, allocID, ""); err == nil || !strings.Contains(err.Error(), "make the network of the group: pull image registry.example/pause:3") {
		t.Errorf("an image that cannot be had: %v", err)
	}
	fake.Publish("registry.example/pause:3")
	if _, created, err := r.CreateNetwork(r.ctx, allocID, ""); err != nil || !created || fake.Created()["Image"] != "registry.example/pause:3" || fake.HasImage(docker.PauseImage) {
		t.Errorf("made %v, %v of %v", created, err, fake.Created()["Image"])
	}
}

// A network without tasks stays while this process knows of it, and goes when nobody has asked for it for long.
func TestSweep_Networks(t *testing.T) {
	t.Parallel()
	r, fake := dockerRig(t, nil)
	late := func() time.Time { return time.Now().Add(time.Hour) }
	spec, _, err := r.CreateNetwork(r.ctx, allocID, "")
	if err != nil {
		t.Fatal(err)
	}
	if r.sweepContainers(r.ctx, late()); fake.Containers() != 1 {
		t.Fatal("a network was removed that waits for its first task")
	}
	j := r.job(app("sleep"), inGroup(spec))
	h := r.start(j)
	r.restart()
	if err := r.Recover(r.ctx, h); err != nil {
		t.Fatal(err)
	}
	if r.sweepContainers(r.ctx, late()); fake.Containers() != 2 {
		t.Fatal("the network of a task that runs was removed")
	}
	if err := r.Destroy(r.ctx, j.cfg.Id, true); err != nil {
		t.Fatal(err)
	}
	if r.sweepContainers(r.ctx, time.Now().Add(-time.Minute)); fake.Containers() != 1 {
		t.Fatal("a young network was removed")
	}
	if r.sweepContainers(r.ctx, late()); fake.Containers() != 0 {
		t.Error("a network that nobody knows is left")
	}
}

func TestSweep_DanglingContainers(t *testing.T) {
	t.Parallel()
	old := time.Now().Add(-time.Hour)
	for name, c := range map[string]struct {
		options map[string]any
		left    int
		said    string
	}{
		"as it is":     {map[string]any{}, 0, ""},
		"switched off": {map[string]any{"enabled": false}, 1, ""},
		"only said":    {map[string]any{"dry_run": true}, 1, "would remove a container"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, fake := dockerRig(t, map[string]any{"gc": map[string]any{"dangling_containers": c.options}})
			fake.Seed("ours", map[string]string{docker.LabelState: r.state, docker.LabelTask: "gone/task/1"}, old)
			r.sweepContainers(r.ctx, time.Now().Add(-time.Minute))
			if fake.Containers() != c.left || !strings.Contains(r.log.String(), c.said) {
				t.Errorf("%d containers are left; log: %s", fake.Containers(), r.log)
			}
		})
	}
	for option, value := range map[string]string{"period": "5s", "creation_grace": "soon"} {
		_, err := (Config{Docker: &Docker{Enabled: true, GC: &GC{Container: true, Dangling: map[string]*Dangling{
			"period": {Enabled: true, Period: value}, "creation_grace": {Enabled: true, Grace: value},
		}[option]}}}).settle()
		if err == nil || !strings.Contains(err.Error(), "docker.gc.dangling_containers."+option) {
			t.Errorf("%s = %q: %v", option, value, err)
		}
	}
	s, err := (Config{Docker: &Docker{Enabled: true, GC: &GC{Container: true, Dangling: &Dangling{Enabled: true, Period: "2m", Grace: "7m"}}}}).settle()
	if d := s.Docker.dangling; err != nil || d.period != 2*time.Minute || d.grace != 7*time.Minute {
		t.Errorf("settled %+v, %v", d, err)
	}
}

func TestDocker_EndedContainersStay(t *testing.T) {
	t.Parallel()
	r, fake := dockerRig(t, map[string]any{"gc": map[string]any{"container": false}})
	j := r.job(app("sleep"))
	r.start(j)
	id := r.task(j.cfg.Id).record.Container
	if err := r.Destroy(r.ctx, j.cfg.Id, true); err != nil {
		t.Fatal(err)
	}
	r.sweepContainers(r.ctx, time.Now().Add(time.Hour))
	state, err := r.runtimes[runtimeDocker].(*dockerRuntime).engine.State(r.ctx, id)
	if err != nil || state.Running || fake.Containers() != 1 {
		t.Errorf("the ended container: %+v, %v", state, err)
	}
	if _, err := os.Stat(filepath.Join(r.state, "tasks")); err != nil {
		t.Error(err)
	}
}
