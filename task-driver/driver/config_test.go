package driver

import (
	"encoding/base64"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/nomadplugin"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/host"
)

func decodeHCL(t testing.TB, src string) (TaskConfig, error) {
	t.Helper()
	file, diags := hclsyntax.ParseConfig([]byte(src), "config.hcl", hcl.InitialPos)
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	body, err := host.EncodeBody(taskConfigSchema(), file.Body, nil)
	if err != nil {
		t.Fatal(err)
	}
	return readTaskConfig(body)
}

func TestTaskConfig_Decode(t *testing.T) {
	t.Parallel()
	got, err := decodeHCL(t, `
		image    = "app:1"
		images   { nvidia = "cuda:1" }
		command  = "serve"
		args     = ["--port", "8000"]
		labels   { team = "ml" }
		env      { A = "1" }
		ports    = ["http"]
		shm_size = "1GiB"
		ulimit   { nofile = "1024:2048" }
		mount {
			type   = "bind"
			source = "local/data"
			target = "/data"
			readonly = true
			bind_options { propagation = "rslave" }
		}
		mount {
			type   = "tmpfs"
			target = "/cache"
			tmpfs_options { size = 1000000 }
		}
		accelerator {
			count   = 2
			memory  = "20GiB"
			compute = 30
			vendor  = ["nvidia", "ascend"]
		}
		grant = "hfg1.x.y"
	`)
	if err != nil {
		t.Fatal(err)
	}
	want := TaskConfig{
		Runtime: "docker", Image: "app:1", Images: map[string]string{"nvidia": "cuda:1"}, Command: "serve", Args: []string{"--port", "8000"},
		Labels: map[string]string{"team": "ml"}, Env: map[string]string{"A": "1"}, Ports: []string{"http"}, ShmSize: "1GiB",
		Ulimit: map[string]string{"nofile": "1024:2048"}, CPUCFSPeriod: 100000, Grant: "hfg1.x.y", NameAttempts: 5, Devices: []DeviceConfig{},
		Mounts: []MountConfig{
			{Type: "bind", Source: "local/data", Target: "/data", ReadOnly: true, BindOptions: &BindConfig{Propagation: "rslave"}},
			{Type: "tmpfs", Target: "/cache", TmpfsOptions: &TmpfsConfig{Size: 1000000}},
		},
		Accelerator: &accel.Block{Count: 2, Memory: "20GiB", Compute: 30, Vendor: []string{"nvidia", "ascend"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("config (-want +got):\n%s", diff)
	}
}

// Nomad sends a job's config as JSON, where a map is a map whether the user wrote it as block or attribute.
func TestTaskConfig_MapsAsBlockAndAttribute(t *testing.T) {
	t.Parallel()
	for name, value := range map[string]any{"attribute": map[string]any{"nvidia": "cuda:1"}, "block": []any{map[string]any{"nvidia": "cuda:1"}}} {
		body, err := host.EncodeConfig(taskConfigSchema(), map[string]any{"images": value, "labels": value, "env": value})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		tc, err := readTaskConfig(body)
		if err != nil || tc.Images["nvidia"] != "cuda:1" || tc.Labels["nvidia"] != "cuda:1" || tc.Env["nvidia"] != "cuda:1" {
			t.Errorf("%s: %+v, %v", name, tc, err)
		}
	}
}

func TestTaskConfig_Refusals(t *testing.T) {
	t.Parallel()
	for src, want := range map[string]string{
		``:                               `config.image: it is missing: write image = "…"`,
		`runtime = "podman"`:             `config.runtime: "podman" is not known: write docker or process`,
		`runtime = "process"`:            "config.command: it is missing",
		`images { acme = "x" }`:          `unknown brand "acme": write one of nvidia, mthreads`,
		"image = \"x\"\nshm_size=\"2\"":  "",
		"image = \"x\"\nshm_size=\"2Q\"": "config.shm_size",
		"image = \"x\"\nulimit { nofile = \"many\" }":                       "config.ulimit",
		"image = \"x\"\nmount { target = \"data\" }":                        "config.mount: target \"data\" is not a full path",
		"image = \"x\"\nmount {\n type = \"nfs\"\n target = \"/x\"\n}":      `type "nfs" is not known`,
		"image = \"x\"\naccelerator { memory = \"20\" }":                    `config.accelerator: memory: memory "20" has no unit`,
		"image = \"x\"\naccelerator {\n memory = \"1GiB\"\n compute = 5\n}": "compute: 5 is outside 10–100",
		"image = \"x\"\naccelerator { count = -1 }":                         "count: -1 is negative",
		"image = \"x\"\ncpu_cfs_period = 5":                                 "config.cpu_cfs_period: 5 is outside",
		"image = \"x\"\npids_limit = -5":                                    "config.pids_limit: -5 is negative",
		"runtime = \"process\"\ncommand = \"x\"\nprivileged = true":         "config.privileged: it needs a container",
		"runtime = \"process\"\ncommand = \"x\"\nvolumes = [\"/a:/b\"]":     "config.volumes: it needs a container",
		"runtime = \"process\"\ncommand = \"x\"\nmount { target = \"/x\" }": "config.mount: it needs a container",
		"runtime = \"process\"\ncommand = \"x\"\nnetwork_mode = \"host\"":   "",
	} {
		_, err := decodeHCL(t, src)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s\n got %v, want %q", src, err, want)
		}
	}
}

func TestPluginConfig(t *testing.T) {
	t.Parallel()
	key := base64.StdEncoding.EncodeToString(make([]byte, 32))
	for name, c := range map[string]struct {
		config map[string]any
		want   string
	}{
		"empty":            {nil, ""},
		"a key":            {map[string]any{"grant_public_key": key}, ""},
		"not a key":        {map[string]any{"grant_public_key": "abc"}, "grant_public_key: it is not an Ed25519 key"},
		"relative folder":  {map[string]any{"state_dir": "data"}, `state_dir: "data" is not absolute`},
		"no duration":      {map[string]any{"orphan_after": "soon"}, `orphan_after: "soon" is not a duration`},
		"too seldom":       {map[string]any{"reconcile_every": "2m"}, `reconcile_every: "2m" is not a duration from 1s to 1m0s`},
		"no endpoint":      {map[string]any{"docker": map[string]any{"endpoint": "/var/run/docker.sock"}}, "docker.endpoint"},
		"a tcp endpoint":   {map[string]any{"docker": map[string]any{"endpoint": "tcp://127.0.0.1:2375"}}, ""},
		"everything is on": {map[string]any{"docker": map[string]any{}, "process": map[string]any{"enabled": true, "user": "nobody"}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			body, err := host.EncodeConfig(configSchema(), c.config)
			if err != nil {
				t.Fatal(err)
			}
			d := New(Options{Version: "0.1.0"})
			defer d.Close()
			for range 2 { // Nomad calls it several times
				err = d.Configure(body)
				if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
					t.Errorf("configure: %v, want %q", err, c.want)
				}
			}
		})
	}
}

func TestCapabilities_AllowList(t *testing.T) {
	t.Parallel()
	o := &Docker{AllowCaps: append([]string{"SYS_PTRACE"}, defaultCaps...)}
	got, err := o.capabilities([]string{"cap_sys_ptrace"}, []string{"MKNOD"})
	if err != nil || !slices.Contains(got, "SYS_PTRACE") || slices.Contains(got, "MKNOD") || slices.Contains(got, "NET_RAW") || !slices.Contains(got, "CHOWN") {
		t.Errorf("capabilities = %v, %v", got, err)
	}
	if _, err := o.capabilities([]string{"SYS_ADMIN"}, nil); err == nil || !strings.Contains(err.Error(), "cap_add: SYS_ADMIN is not allowed") {
		t.Errorf("SYS_ADMIN: %v", err)
	}
	if got, err := o.capabilities([]string{"NET_BIND_SERVICE"}, []string{"all"}); err != nil || !cmp.Equal(got, []string{"NET_BIND_SERVICE"}) {
		t.Errorf("drop all but one = %v, %v", got, err)
	}
}

func TestSignalNumber(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]int{"SIGTERM": 15, "term": 15, "HUP": 1, "9": 9, "SIGUSR1": 10} {
		if got, err := signalNumber(in); err != nil || int(got) != want {
			t.Errorf("%s = %d, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "SIGNOPE", "-1", "99"} {
		if _, err := signalNumber(in); err == nil {
			t.Errorf("%q was accepted", in)
		}
	}
}

func FuzzTaskConfig(f *testing.F) {
	for _, config := range []map[string]any{
		{"image": "x", "accelerator": map[string]any{"count": 1}},
		{"runtime": "process", "command": "a", "args": []string{"b"}},
		{"image": "x", "mount": []any{map[string]any{"type": "tmpfs", "target": "/x"}}},
	} {
		body, err := host.EncodeConfig(taskConfigSchema(), config)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(body)
	}
	f.Add([]byte{0xdf, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, body []byte) {
		tc, err := readTaskConfig(body)
		if err == nil && tc.Image == "" && len(tc.Images) == 0 && tc.Command == "" {
			t.Errorf("a config that runs nothing was accepted: %+v", tc)
		}
	})
}

func FuzzPluginConfig(f *testing.F) {
	body, err := host.EncodeConfig(configSchema(), map[string]any{"process": map[string]any{"enabled": true}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(body)
	f.Fuzz(func(t *testing.T, body []byte) {
		var c Config
		if nomadplugin.DecodeConfig(body, &c) != nil {
			return
		}
		if s, err := c.settle(); err == nil && (s.Docker == nil || s.Process == nil || s.StateDir == "") {
			t.Errorf("settled without its parts: %+v", s)
		}
	})
}

func FuzzParseVolume(f *testing.F) {
	for _, s := range []string{"a:/b", "./a:/b:ro", "name:/x", ":/", "a:b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if m, err := parseVolume(s); err == nil && (m.Source == "" || !strings.HasPrefix(m.Target, "/")) {
			t.Errorf("%q was read as %+v", s, m)
		}
	})
}
