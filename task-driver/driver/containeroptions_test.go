package driver

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/nomadplugin"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
	"github.com/heteroflow/heteroflow/task-driver/docker"
	"github.com/heteroflow/heteroflow/task-driver/docker/dockertest"
)

// with is a task of the image app:1 with options.
func with(options map[string]any) map[string]any {
	c := app("sleep")
	for k, v := range options {
		c[k] = v
	}
	return c
}

// made starts a task and returns what its container was made with.
func made(t *testing.T, r *rig, fake *dockertest.Engine, config map[string]any, change ...func(*driverpb.TaskConfig)) (all, host map[string]any) {
	t.Helper()
	r.start(r.job(config, change...))
	all = fake.Created()
	return all, all["HostConfig"].(map[string]any)
}

// refusedStart starts a task that must be refused with the words.
func refusedStart(t *testing.T, r *rig, config map[string]any, want string, change ...func(*driverpb.TaskConfig)) {
	t.Helper()
	_, _, err := r.Start(r.ctx, r.taskConfig(config, change...))
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("start: %v, want %q", err, want)
	}
}

// said collects the task events of a node.
func said(t *testing.T, r *rig) func() []string {
	t.Helper()
	events, stop := r.events.listen()
	t.Cleanup(stop)
	return func() []string {
		var out []string
		for {
			select {
			case e := <-events:
				out = append(out, e.Message)
			default:
				return out
			}
		}
	}
}

func TestDocker_MoreOptions(t *testing.T) {
	t.Parallel()
	r, fake := dockerRig(t, map[string]any{"allow_privileged": true})
	got, host := made(t, r, fake, with(map[string]any{
		"cgroupns": "private", "uts_mode": "host", "userns_mode": "host", "oom_score_adj": 300, "interactive": true,
		"healthchecks": map[string]any{"disable": true}, "storage_opt": map[string]any{"size": "40G"}, "sysctl": map[string]any{"net.core.somaxconn": "16384"},
		"group_add": []string{"video"}, "network_mode": "lab", "network_aliases": []string{"web"}, "ipv4_address": "10.9.0.7", "ipv6_address": "fd00::7",
		"mac_address": "02:68:b3:29:da:98", "dns_servers": []string{"10.0.0.1"}, "dns_search_domains": []string{"lab"}, "dns_options": []string{"ndots:2"},
	}), func(c *driverpb.TaskConfig) {
		c.Dns = &driverpb.DNSConfig{Servers: []string{"10.0.0.2"}, Searches: []string{"corp"}, Options: []string{"rotate"}}
	})
	ends := got["NetworkingConfig"].(map[string]any)["EndpointsConfig"].(map[string]any)["lab"].(map[string]any)
	for what, c := range map[string]struct{ got, want any }{
		"cgroupns": {host["CgroupnsMode"], "private"}, "uts": {host["UTSMode"], "host"}, "userns": {host["UsernsMode"], "host"},
		"oom": {host["OomScoreAdj"], 300.0}, "stdin": {got["OpenStdin"], true}, "health check": {got["Healthcheck"], map[string]any{"Test": []any{"NONE"}}},
		"storage": {host["StorageOpt"], map[string]any{"size": "40G"}}, "sysctl": {host["Sysctls"], map[string]any{"net.core.somaxconn": "16384"}},
		"groups": {host["GroupAdd"], []any{"video"}}, "network": {host["NetworkMode"], "lab"}, "aliases": {ends["Aliases"], []any{"web"}},
		"addresses": {ends["IPAMConfig"], map[string]any{"IPv4Address": "10.9.0.7", "IPv6Address": "fd00::7"}}, "mac": {ends["MacAddress"], "02:68:b3:29:da:98"},
		"dns": {host["Dns"], []any{"10.0.0.1"}}, "search": {host["DnsSearch"], []any{"lab"}}, "dns options": {host["DnsOptions"], []any{"ndots:2"}},
	} {
		if diff := cmp.Diff(c.want, c.got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	_, host = made(t, r, fake, with(nil), func(c *driverpb.TaskConfig) {
		c.Id += "2"
		c.Dns = &driverpb.DNSConfig{Options: []string{"rotate"}}
	})
	if diff := cmp.Diff([]any{"rotate"}, host["DnsOptions"]); diff != "" {
		t.Errorf("options of the group's dns (-want +got):\n%s", diff)
	}
	closed, _ := dockerRig(t, nil)
	for key, value := range map[string]string{"cgroupns": "host", "uts_mode": "host", "userns_mode": "host"} {
		refusedStart(t, closed, with(map[string]any{key: value}), "docker { allow_privileged = true }")
	}
	for key, c := range map[string]struct {
		value any
		want  string
	}{
		"cgroupns": {"shared", "write private or host"}, "oom_score_adj": {1001, "outside 0–1000"}, "mac_address": {"02:68", "is not an address"},
		"ipv4_address": {"fd00::7", "is not such an address"}, "network_aliases": {[]string{"web"}, "network with a name"},
		"memory_hard_limit": {-1, "is negative"}, "container_exists_attempts": {-1, "is negative"}, "port_map": {map[string]any{"http": 70000}, "is not a port"},
		"image_pull_timeout": {"soon", `write for example "30m"`}, "pull_policy": {"sometimes", "write missing, always or never"},
	} {
		refusedStart(t, closed, with(map[string]any{key: c.value}), c.want)
	}
}

func TestDocker_MemoryLimits(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		memory, most, hard int64 // MiB
		limit, reserve     int64
	}{
		"plain":                  {memory: 100, limit: 100},
		"memory_max":             {memory: 100, most: 200, limit: 200, reserve: 100},
		"hard limit":             {memory: 100, hard: 300, limit: 300, reserve: 100},
		"the larger is the max":  {memory: 100, most: 400, hard: 300, limit: 400, reserve: 100},
		"the larger is the hard": {memory: 100, most: 200, hard: 300, limit: 300, reserve: 100},
		"hard below":             {memory: 100, hard: 50, limit: 100},
		"no limit":               {memory: 100, most: -1, hard: 300, limit: 0, reserve: 100},
	} {
		cfg := &driverpb.TaskConfig{Resources: &driverpb.Resources{
			AllocatedResources: &driverpb.AllocatedTaskResources{Memory: &driverpb.AllocatedMemoryResources{MemoryMb: c.memory, MemoryMaxMb: c.most}},
			LinuxResources:     &driverpb.LinuxResources{MemoryLimitBytes: max(c.memory, c.most) << 20},
		}}
		limit, reserve := containerMemoryLimits(cfg, TaskConfig{MemoryHardMiB: c.hard})
		if limit != c.limit<<20 || reserve != c.reserve<<20 {
			t.Errorf("%s: limit %d, reservation %d MiB", name, limit>>20, reserve>>20)
		}
	}
}

func TestDocker_Auth(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "config.json")
	helper := "#!/bin/sh\nread server\ncase $server in\nhelped.example) echo '{\"Username\":\"robot\",\"Secret\":\"s3cret\"}';;\nbroken.example) echo oops; exit 2;;\n*) echo 'credentials not found in native keychain'; exit 1;;\nesac\n"
	for path, body := range map[string]string{file: `{"auths":{"filed.example":{"auth":"bWU6cHc="}}}`, filepath.Join(dir, "docker-credential-hf"): helper} {
		if err := os.WriteFile(path, []byte(body), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	r, fake := dockerRig(t, map[string]any{"auth_file": file, "auth_helper": "hf"})
	events := said(t, r)
	own := map[string]any{"username": "u", "password": "pa55", "email": "u@example.com", "server_address": "own.example"}
	for _, c := range []struct {
		image  string
		more   map[string]any
		want   map[string]string // nil: none
		refuse string
	}{
		{image: "filed.example/app:1", want: map[string]string{"username": "me", "password": "pw", "serveraddress": "filed.example"}},
		{image: "helped.example/app:1", want: map[string]string{"username": "robot", "password": "s3cret", "serveraddress": "helped.example"}},
		{image: "open.example/app:1"},
		{image: "filed.example/own:1", more: map[string]any{"auth": own}, want: map[string]string{"username": "u", "password": "pa55", "serveraddress": "own.example"}},
		{image: "broken.example/app:1", refuse: "auth_soft_fail = true"},
		{image: "broken.example/app:1", more: map[string]any{"auth_soft_fail": true}},
	} {
		fake.Publish(c.image)
		options := map[string]any{"image": c.image}
		for k, v := range c.more {
			options[k] = v
		}
		if c.refuse != "" {
			refusedStart(t, r, with(options), c.refuse)
			continue
		}
		r.start(r.job(with(options), func(cfg *driverpb.TaskConfig) { cfg.Id += c.image }))
		auths := fake.Auths()
		var got map[string]string
		if last := auths[len(auths)-1]; last != "" {
			if err := json.Unmarshal([]byte(last), &got); err != nil {
				t.Fatalf("%s: %q: %v", c.image, last, err)
			}
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.image, diff)
		}
	}
	text := r.log.String() + strings.Join(events(), "\n")
	for _, secret := range []string{"s3cret", "pa55", "bWU6cHc="} {
		if strings.Contains(text, secret) {
			t.Errorf("log or events hold %q", secret)
		}
	}
	if !strings.Contains(text, "No credentials for image broken.example/app:1") {
		t.Errorf("nobody was told that there were no credentials: %s", text)
	}
}

func TestDocker_PullPolicy(t *testing.T) {
	t.Parallel()
	for image, c := range map[string]struct {
		tc   TaskConfig
		want string
	}{
		"app:1":                             {want: pullMissing},
		"app":                               {want: pullAlways},
		"app:latest":                        {want: pullAlways},
		"reg.example:5000/app":              {want: pullAlways},
		"reg.example:5000/app:2":            {want: pullMissing},
		"app:3":                             {tc: TaskConfig{ForcePull: true}, want: pullAlways},
		"app:latest@sha256:0123":            {tc: TaskConfig{ForcePull: true}, want: pullMissing},
		"reg.example/app:latest":            {tc: TaskConfig{PullPolicy: pullNever}, want: pullNever},
		"reg.example/app@sha256:0123456789": {want: pullMissing},
		"saved":                             {tc: TaskConfig{Load: "saved.tar"}, want: pullMissing},
	} {
		if got := c.tc.pullPolicy(image); got != c.want {
			t.Errorf("%s: %s, want %s", image, got, c.want)
		}
	}
	r, fake := dockerRig(t, nil)
	events := said(t, r)
	fake.AddImage("app")
	r.start(r.job(with(map[string]any{"image": "app"}))) // latest, and no registry has it: the node's is used
	if all := strings.Join(events(), "\n"); !strings.Contains(all, "Image app could not be pulled anew") {
		t.Errorf("events: %s", all)
	}
	refusedStart(t, r, with(map[string]any{"image": "absent:1", "pull_policy": "never"}), "pull_policy is never")
	refusedStart(t, r, with(map[string]any{"pull_policy": "never", "force_pull": true}), "says the contrary")
	pulls := len(fake.Auths())
	r.start(r.job(with(map[string]any{"pull_policy": "missing", "image": "app"}), func(c *driverpb.TaskConfig) { c.Id += "2" }))
	if len(fake.Auths()) != pulls {
		t.Error("an image that is there was pulled")
	}
}

func TestDocker_PullLimits(t *testing.T) {
	t.Parallel()
	r, fake := dockerRig(t, nil)
	fake.Break(dockertest.Fault{Match: "POST /images/create", Delay: time.Hour})
	fake.Publish("slow:1")
	_, _, err := r.Start(r.ctx, r.taskConfig(with(map[string]any{"image": "slow:1", "image_pull_timeout": "30ms"})))
	if err == nil || !strings.Contains(err.Error(), `longer than image_pull_timeout = "30ms"`) || !nomadplugin.IsRecoverable(err) {
		t.Errorf("a pull that takes too long: %v", err)
	}
	_, all := r.current()
	all[runtimeDocker].(*dockerRuntime).options.pullSilence = 30 * time.Millisecond
	_, _, err = r.Start(r.ctx, r.taskConfig(with(map[string]any{"image": "slow:1"})))
	if err == nil || !strings.Contains(err.Error(), "said nothing of it for 30ms") || !nomadplugin.IsRecoverable(err) {
		t.Errorf("a pull that is silent: %v", err)
	}
	for text, ok := range map[string]bool{"2m": true, "0s": true, "": true, "1ms": false, "soon": false} {
		d := Docker{PullSilence: text}
		if err := d.settle(); (err == nil) != ok {
			t.Errorf("pull_activity_timeout = %q: %v", text, err)
		}
	}
}

func TestDocker_RequireDigest(t *testing.T) {
	t.Parallel()
	r, fake := dockerRig(t, map[string]any{"require_digest": true})
	refusedStart(t, r, with(nil), "app:1 is not pinned")
	ref := "app@sha256:" + strings.Repeat("ab", 32)
	fake.Publish(ref)
	r.start(r.job(with(map[string]any{"image": "https://" + ref})))
	if got := fake.Created()["Image"]; got != ref {
		t.Errorf("image = %v", got)
	}
}

func TestDocker_Load(t *testing.T) {
	t.Parallel()
	r, fake := dockerRig(t, nil)
	put := func(path, body string) func(*driverpb.TaskConfig) {
		return func(c *driverpb.TaskConfig) {
			c.Id += path
			if err := os.WriteFile(filepath.Join(c.AllocDir, path), []byte(body), 0o600); err != nil {
				t.Error(err)
			}
		}
	}
	saved := map[string]any{"image": "saved", "load": "local/app.tar"}
	r.start(r.job(with(saved), put("web/local/app.tar", "saved")))
	r.start(r.job(with(map[string]any{"image": "saved:2", "load": "app2.tar"}), put("web/local/app2.tar", "saved:2"))) // where artifacts go
	refusedStart(t, r, with(map[string]any{"image": "other:1", "load": "local/a.tar"}), "there is no image other:1 in local/a.tar", put("web/local/a.tar", "saved:3"))
	refusedStart(t, r, with(map[string]any{"image": "other:1", "load": "local/none.tar"}), "have an artifact put it there")
	refusedStart(t, r, with(map[string]any{"image": "other:1", "load": "/etc/app.tar"}), "is a path of the node")
	refusedStart(t, r, with(map[string]any{"image": "other:1", "load": "../../../etc/app.tar"}), "leaves the task's folder")
	if !fake.Asked("POST /images/load") {
		t.Error("nothing was loaded")
	}
}

func TestDocker_NameInUse(t *testing.T) {
	t.Parallel()
	r, fake := dockerRig(t, nil)
	// One of ours that the list does not show yet when the start clears up, then does.
	taken := func(id string, labels map[string]string) func(*driverpb.TaskConfig) {
		return func(c *driverpb.TaskConfig) {
			c.Id = allocID + "/web/" + id
			if labels != nil {
				labels[docker.LabelTask] = c.Id
			}
			fake.Occupy(id, containerName(c), labels)
		}
	}
	r.start(r.job(with(nil), taken("ours", map[string]string{docker.LabelState: r.state})))
	if fake.Containers() != 1 {
		t.Errorf("%d containers", fake.Containers())
	}
	refusedStart(t, r, with(nil), "already in use", taken("foreign", nil))
	if fake.Asked("DELETE /containers/foreign") {
		t.Error("a container of somebody else was removed")
	}
}

func TestDocker_PortMap(t *testing.T) {
	t.Parallel()
	r, fake := dockerRig(t, nil)
	ports := func(c *driverpb.TaskConfig) {
		c.Resources.Ports = []*driverpb.PortMapping{{Label: "http", Value: 25000, To: 80}, {Label: "rpc", Value: 25001}}
	}
	_, host := made(t, r, fake, with(map[string]any{"ports": []string{"rpc"}, "port_map": map[string]any{"http": 8080}}), ports)
	var got []string
	for port := range host["PortBindings"].(map[string]any) {
		got = append(got, port)
	}
	slices.Sort(got)
	if diff := cmp.Diff([]string{"25001/tcp", "25001/udp", "8080/tcp", "8080/udp"}, got); diff != "" {
		t.Errorf("ports (-want +got):\n%s", diff)
	}
	refusedStart(t, r, with(map[string]any{"port_map": map[string]any{"none": 1}}), `the group's network has no port "none"`, ports)
}

func TestDocker_AdvertiseIPv6(t *testing.T) {
	t.Parallel()
	r, _ := dockerRig(t, nil)
	_, network, err := r.Start(r.ctx, r.job(with(map[string]any{"advertise_ipv6_address": true})).cfg)
	if err != nil || network.GetAddr() != "2001:db8::9" {
		t.Errorf("network = %v, %v", network, err)
	}
}

func TestDocker_TTY(t *testing.T) {
	t.Parallel()
	r, fake := dockerRig(t, nil)
	c := app("echo", "hello", "tty")
	c["tty"] = true
	j := r.job(c)
	r.start(j)
	r.wait(j.cfg.Id)
	if out := <-j.stdout; out != "hello tty\n" || fake.Created()["Tty"] != true {
		t.Errorf("output %q", out)
	}
}

func TestDocker_Logging(t *testing.T) {
	t.Parallel()
	node := &Docker{AllowLogDrivers: defaultLogDrivers}
	big := map[string]string{"max-file": "5", "max-size": "50m"}
	for name, c := range map[string]struct {
		node, task *Logging
		kind       string
		options    map[string]string
		refused    bool
	}{
		"by itself":           {kind: "json-file", options: map[string]string{"max-file": "2", "max-size": "20m"}},
		"the task's size":     {task: &Logging{Config: big}, kind: "json-file", options: big},
		"the task's driver":   {task: &Logging{Driver: "local"}, kind: "local", options: map[string]string{}},
		"the node's":          {node: &Logging{Type: "fluentd", Config: map[string]string{"tag": "x"}}, kind: "fluentd", options: map[string]string{"tag": "x"}},
		"the node's, resized": {node: &Logging{Type: "local"}, task: &Logging{Config: big}, kind: "local", options: big},
		"not allowed":         {task: &Logging{Type: "fluentd"}, refused: true},
		"the same as the node's": {
			node: &Logging{Type: "fluentd", Config: map[string]string{"tag": "x"}}, task: &Logging{Type: "fluentd"}, kind: "fluentd", options: map[string]string{"tag": "x"},
		},
	} {
		node.Logging = c.node
		kind, options, err := node.logging(c.task)
		if (err != nil) != c.refused || !c.refused && (kind != c.kind || cmp.Diff(c.options, options) != "") {
			t.Errorf("%s: %s %v, %v", name, kind, options, err)
		}
	}
	r, fake := dockerRig(t, map[string]any{"disable_log_collection": true})
	j := r.job(app("echo", "nobody reads it"))
	r.start(j)
	r.wait(j.cfg.Id)
	if out := <-j.stdout; out != "" || fake.Asked("GET /containers/.*/logs") {
		t.Errorf("output %q was collected", out)
	}
}

func TestDocker_PidsLimit(t *testing.T) {
	t.Parallel()
	r, fake := dockerRig(t, map[string]any{"pids_limit": 100})
	_, host := made(t, r, fake, with(nil))
	if host["PidsLimit"] != 100.0 {
		t.Errorf("limit = %v", host["PidsLimit"])
	}
	_, host = made(t, r, fake, with(map[string]any{"pids_limit": 50}), func(c *driverpb.TaskConfig) { c.Id += "2" })
	if host["PidsLimit"] != 50.0 {
		t.Errorf("limit = %v", host["PidsLimit"])
	}
	refusedStart(t, r, with(map[string]any{"pids_limit": 101}), "more than the 100 that this node allows")
}

func TestDocker_VolumeDriver(t *testing.T) {
	t.Parallel()
	r, fake := dockerRig(t, map[string]any{"volumes_enabled": true})
	_, host := made(t, r, fake, with(map[string]any{"volumes": []string{"data:/data", "local/x:/x"}, "volume_driver": "pxd"}))
	mounts := host["Mounts"].([]any)
	volume, bind := mounts[len(mounts)-2].(map[string]any), mounts[len(mounts)-1].(map[string]any)
	if volume["VolumeOptions"].(map[string]any)["DriverConfig"].(map[string]any)["Name"] != "pxd" || bind["Type"] != "bind" {
		t.Errorf("mounts = %v", mounts)
	}
}

func TestDocker_MountOptions(t *testing.T) {
	t.Parallel()
	r, fake := dockerRig(t, map[string]any{"volumes_enabled": true, "allow_privileged": true})
	srv := t.TempDir()
	_, host := made(t, r, fake, with(map[string]any{
		"mounts": []any{map[string]any{"type": "bind", "source": srv, "target": "/a", "readonly": true, "bind_options": map[string]any{"propagation": "rslave"}}},
		"mount": []any{
			map[string]any{"type": "tmpfs", "target": "/b", "tmpfs_options": map[string]any{"size": 1024, "mode": 448}},
			map[string]any{"target": "/c", "source": "vol", "volume_options": map[string]any{
				"no_copy": true, "labels": map[string]any{"l": "1"}, "driver_config": map[string]any{"name": "local", "options": map[string]any{"type": "nfs"}},
			}},
		},
	}))
	byTarget := map[string]map[string]any{}
	for _, m := range host["Mounts"].([]any) {
		byTarget[m.(map[string]any)["Target"].(string)] = m.(map[string]any)
	}
	for target, want := range map[string]map[string]any{
		"/a": {"Type": "bind", "Source": srv, "Target": "/a", "ReadOnly": true, "BindOptions": map[string]any{"Propagation": "rslave"}},
		"/b": {"Type": "tmpfs", "Target": "/b", "TmpfsOptions": map[string]any{"SizeBytes": 1024.0, "Mode": 448.0}},
		"/c": {"Type": "volume", "Source": "vol", "Target": "/c", "VolumeOptions": map[string]any{
			"NoCopy": true, "Labels": map[string]any{"l": "1"}, "DriverConfig": map[string]any{"Name": "local", "Options": map[string]any{"type": "nfs"}},
		}},
	} {
		if diff := cmp.Diff(want, byTarget[target]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", target, diff)
		}
	}
}

func TestDocker_SELinux(t *testing.T) {
	t.Parallel()
	r, fake := dockerRig(t, map[string]any{"volumes_selinuxlabel": "z"})
	j := r.job(with(map[string]any{"volumes": []string{"local/x:/x:ro"}, "mount": []any{map[string]any{"type": "tmpfs", "target": "/t"}}}))
	r.start(j)
	host := fake.Created()["HostConfig"].(map[string]any)
	want := []any{j.cfg.AllocDir + "/alloc:/alloc:z", j.cfg.AllocDir + "/web/local:/local:z", j.cfg.AllocDir + "/web/secrets:/secrets:z", j.cfg.AllocDir + "/web/local/x:/x:ro,z"}
	if diff := cmp.Diff(want, host["Binds"]); diff != "" || len(host["Mounts"].([]any)) != 1 {
		t.Errorf("binds (-want +got):\n%s\nmounts %v", diff, host["Mounts"])
	}
}

func TestDocker_Devices(t *testing.T) {
	t.Parallel()
	r, fake := dockerRig(t, map[string]any{"allow_devices": []string{"/dev/null", "/dev/full", "/dev/nvidia*", "/dev/dri/*"}, "allow_privileged": true})
	device := func(path, inside, permissions string) map[string]any {
		return with(map[string]any{"devices": []any{map[string]any{"host_path": path, "container_path": inside, "cgroup_permissions": permissions}}})
	}
	_, host := made(t, r, fake, with(map[string]any{"devices": []any{
		map[string]any{"host_path": "/dev/null", "container_path": "/dev/nothing", "cgroup_permissions": "r"}, map[string]any{"host_path": "/dev/full"},
	}}))
	want := []any{
		map[string]any{"PathOnHost": "/dev/null", "PathInContainer": "/dev/nothing", "CgroupPermissions": "r"},
		map[string]any{"PathOnHost": "/dev/full", "PathInContainer": "/dev/full", "CgroupPermissions": "rwm"},
	}
	if diff := cmp.Diff(want, host["Devices"]); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
	for path, want := range map[string]string{
		"/dev/zero": "docker { allow_devices }", "/dev/nvidia0": "belongs to an accelerator", "/dev/dri": "belongs to an accelerator", "/dev/x/../nvidia1": "belongs to an accelerator",
		"/dev/davinci_manager": "belongs to an accelerator", "/etc/passwd": "no path below /dev", "/dev/shm": "is a folder", "/dev": "is a folder",
	} {
		refusedStart(t, r, device(path, "", ""), want)
	}
	refusedStart(t, r, device("/dev/null", "", "rx"), `write letters of "rwm"`)
	closed, _ := dockerRig(t, nil)
	refusedStart(t, closed, device("/dev/null", "", ""), "docker { allow_devices }")
}

func TestDocker_OCIRuntime(t *testing.T) {
	t.Parallel()
	r, fake := dockerRig(t, map[string]any{"allow_runtimes": []string{"kata", "gone", "nvidia"}})
	fake.SetRuntimes("runc", "kata", "nvidia")
	_, host := made(t, r, fake, with(map[string]any{"oci_runtime": "kata"}))
	if host["Runtime"] != "kata" {
		t.Errorf("runtime = %v", host["Runtime"])
	}
	refusedStart(t, r, with(map[string]any{"oci_runtime": "gone"}), `the Docker daemon has no runtime "gone"`)
	refusedStart(t, r, with(map[string]any{"oci_runtime": "nvidia"}), "shows cards of brand nvidia, and this task was given none")
	refusedStart(t, r, with(map[string]any{"runtime": "kata"}), `an OCI runtime is written oci_runtime = "kata"`)
	card := func(c *driverpb.TaskConfig) { c.DeviceEnv = reserve(t, whole(accel.NVIDIA, "GPU-1")) }
	refusedStart(t, r, with(map[string]any{"oci_runtime": "kata"}), "leave oci_runtime out", card)

	named, other := dockerRig(t, map[string]any{"runtimes": map[string]any{"nvidia": "nvidia-legacy"}})
	other.SetRuntimes("runc", "nvidia-legacy")
	if _, host := made(t, named, other, with(nil), card); host["Runtime"] != "nvidia-legacy" {
		t.Errorf("runtime = %v", host["Runtime"])
	}
	other.SetRuntimes("runc")
	named.look(named.ctx) // as every few seconds
	refusedStart(t, named, with(nil), "sudo nvidia-ctk runtime configure --runtime=docker", func(c *driverpb.TaskConfig) { c.DeviceEnv = reserve(t, whole(accel.NVIDIA, "GPU-2")) })
}

// The whole life of a task on a daemon of Docker 18.09.
func TestDocker_OldDaemon(t *testing.T) {
	t.Parallel()
	r, fake := dockerRig(t, nil)
	fake.SetAPIVersion("1.39")
	j := r.job(app("stubborn"), func(c *driverpb.TaskConfig) { c.DeviceEnv = reserve(t, whole(accel.NVIDIA, "GPU-1")) })
	r.start(j)
	if err := r.Signal(r.ctx, j.cfg.Id, "SIGUSR1"); err != nil {
		t.Fatal(err)
	}
	out, _, exit, err := r.Exec(r.ctx, j.cfg.Id, []string{"echo", "inside"}, time.Minute)
	if err != nil || exit.ExitCode != 0 || string(out) != "inside\n" {
		t.Errorf("exec = %q, %v, %v", out, exit, err)
	}
	ctx, cancel := context.WithCancel(r.ctx)
	if err := r.Stats(ctx, j.cfg.Id, time.Millisecond, func(*driverpb.TaskStats) error { cancel(); return nil }); err != nil {
		t.Error(err)
	}
	if err := r.Stop(r.ctx, j.cfg.Id, 0, ""); err != nil {
		t.Fatal(err)
	}
	if exit := r.wait(j.cfg.Id); exit.ExitCode != 137 {
		t.Errorf("exit = %v", exit)
	}
	if err := r.Destroy(r.ctx, j.cfg.Id, true); err != nil || fake.Containers() != 0 {
		t.Errorf("destroy: %v, %d containers", err, fake.Containers())
	}
	if out := <-j.stdout; out != "got USR1\n" {
		t.Errorf("output = %q", out)
	}
}
