package driver

import (
	"crypto/ed25519"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
	"github.com/heteroflow/heteroflow/task-driver/share"
)

func testKey(t testing.TB) ed25519.PrivateKey {
	t.Helper()
	key, err := grant.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func publicOf(key ed25519.PrivateKey) ed25519.PublicKey { return key.Public().(ed25519.PublicKey) }

func sign(t testing.TB, key ed25519.PrivateKey, g grant.Grant) string {
	t.Helper()
	token, err := g.Sign(key)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// granted is a grant that fits the tasks of these tests.
func granted() grant.Grant {
	return grant.Grant{
		ID: "g1", Namespace: "default", Job: "llm", Group: "serve", Task: "web",
		Count: 1, MemoryMiB: 20480, ComputePct: 30, QoS: accel.Silver, Vendors: []accel.Vendor{accel.NVIDIA},
	}
}

func taskOf(env map[string]string) *driverpb.TaskConfig {
	return &driverpb.TaskConfig{Namespace: "default", JobId: "llm", TaskGroupName: "serve", Name: "web", DeviceEnv: env}
}

func TestAdmit_Refusals(t *testing.T) {
	t.Parallel()
	key, other := testKey(t), testKey(t)
	fits := func(t *testing.T) map[string]string { return reserve(t, slicesOf(accel.NVIDIA, "GPU-1", 0, 20)) }
	cases := map[string]struct {
		grant   func(*grant.Grant)
		token   string // instead of the grant
		key     ed25519.PrivateKey
		devices func(*testing.T) map[string]string
		task    func(*driverpb.TaskConfig)
		want    string
	}{
		"another namespace":                {grant: func(g *grant.Grant) { g.Namespace = "prod" }, want: `for namespace "prod", this task runs in "default"`},
		"another job":                      {grant: func(g *grant.Grant) { g.Job = "other" }, want: `for job "other", this task belongs to "llm"`},
		"a job with its prefix":            {task: func(c *driverpb.TaskConfig) { c.JobId = "llm2" }, want: `for job "llm", this task belongs to "llm2"`},
		"a name like a dispatched child's": {task: func(c *driverpb.TaskConfig) { c.JobId = "llm/dispatch-1700000000-ab12cd34" }, want: `for job "llm", this task belongs to "llm/dispatch-1700000000-ab12cd34"`},
		"a name like a periodic child's":   {task: func(c *driverpb.TaskConfig) { c.JobId = "llm/periodic-1700000000" }, want: `for job "llm", this task belongs to "llm/periodic-1700000000"`},
		"a child of the other kind":        {grant: func(g *grant.Grant) { g.Children = grant.Periodic }, task: func(c *driverpb.TaskConfig) { c.JobId = "llm/dispatch-1" }, want: `for job "llm", this task belongs to "llm/dispatch-1"`},
		"another group":                    {grant: func(g *grant.Grant) { g.Group = "train" }, want: "for task train/web, this is serve/web"},
		"another task":                     {grant: func(g *grant.Grant) { g.Task = "side" }, want: "for task serve/side, this is serve/web"},
		"nothing reserved":                 {devices: func(*testing.T) map[string]string { return nil }, want: "allows 1 card, but Nomad reserved none"},
		"too few cards":                    {grant: func(g *grant.Grant) { g.Count = 2 }, want: "allows 2 cards, but Nomad reserved 1"},
		"too many cards": {devices: func(t *testing.T) map[string]string {
			return reserve(t, slicesOf(accel.NVIDIA, "GPU-1", 0, 20), slicesOf(accel.NVIDIA, "GPU-2", 1, 20))
		}, want: "allows 1 card, but Nomad reserved 2"},
		"another brand":          {devices: func(t *testing.T) map[string]string { return reserve(t, slicesOf(accel.Ascend, "A-1", 0, 20)) }, want: "accepts the brands [nvidia], but Nomad reserved a ascend card A-1"},
		"more than its slices":   {grant: func(g *grant.Grant) { g.MemoryMiB = 20481 }, want: "but the slices reserved of nvidia card GPU-1 hold 20 GiB"},
		"more than the card":     {grant: func(g *grant.Grant) { g.MemoryMiB = 70000 }, devices: func(t *testing.T) map[string]string { return reserve(t, whole(accel.NVIDIA, "GPU-9")) }, want: "hold 64 GiB"},
		"whole asked, slice got": {grant: func(g *grant.Grant) { g.MemoryMiB = 0 }, want: "for whole cards, but only 20 slices"},
		"slices of unknown size": {devices: func(t *testing.T) map[string]string {
			r := slicesOf(accel.NVIDIA, "GPU-1", 0, 20)
			r.UnitMiB = 0
			return reserve(t, r)
		}, want: "do not say how much memory"},
		"signed by somebody else": {key: other, want: grant.ErrSignature.Error()},
		"not a grant":             {token: "hello", want: "send the job to the placement service"},
		"cut short":               {token: "hfg1.abc", want: "cut short"},
		"a reservation that does not parse": {devices: func(*testing.T) map[string]string {
			return map[string]string{grant.EnvPrefix + "X": "{"}
		}, want: "device reservation"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, devices, signer := granted(), fits, key
			if c.grant != nil {
				c.grant(&g)
			}
			if c.devices != nil {
				devices = c.devices
			}
			if c.key != nil {
				signer = c.key
			}
			tc := TaskConfig{Grant: sign(t, signer, g), Accelerator: &accel.Block{}}
			if c.token != "" {
				tc.Grant = c.token
			}
			cfg := taskOf(devices(t))
			if c.task != nil {
				c.task(cfg)
			}
			_, err := admit(cfg, tc, key.Public().(ed25519.PublicKey), false)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("admit: %v, want %q", err, c.want)
			}
		})
	}
}

func TestAdmit_NotAdmitted(t *testing.T) {
	t.Parallel()
	_, err := admit(taskOf(reserve(t, whole(accel.NVIDIA, "GPU-1"))), TaskConfig{Accelerator: &accel.Block{Memory: "20GiB"}}, nil, false)
	want := "this task asks for an accelerator but was not admitted: submit the job to the placement service (NOMAD_ADDR=http://<placement-service>:3333), which decides where it runs"
	if !errors.Is(err, errNotAdmitted) || err.Error() != want {
		t.Errorf("admit: %v", err)
	}
}

func TestAdmit_EnvIsNeverTrusted(t *testing.T) {
	t.Parallel()
	cfg := taskOf(nil)
	cfg.Env = reserve(t, whole(accel.NVIDIA, "GPU-1")) // a job can set this
	s, err := admit(cfg, TaskConfig{}, nil, false)
	if err != nil || len(s.cards) != 0 {
		t.Errorf("a reservation was taken from env: %+v, %v", s, err)
	}
}

// A job can write what it likes into its config, its env, its meta (which Nomad turns into env and into its config) and, once
// dispatched, its name. None of it gets a card, or more of one, than Nomad reserved and the cluster's key signed.
func TestAdmit_ForgedGrants(t *testing.T) {
	t.Parallel()
	key, own := testKey(t), testKey(t)
	much := granted()
	much.MemoryMiB, much.ComputePct, much.QoS, much.Count = 0, 0, accel.Gold, 8
	child := granted()
	child.Children = grant.Dispatched
	unsigned := sign(t, own, much)
	unsigned = unsigned[:strings.LastIndex(unsigned, ".")+1]
	type node struct {
		key     ed25519.PublicKey
		require bool
	}
	nodes := map[string]node{"no key": {}, "a key": {key: publicOf(key)}, "grants required": {publicOf(key), true}}
	paths := map[string]func(*driverpb.TaskConfig, *TaskConfig){
		"its own key":  func(_ *driverpb.TaskConfig, tc *TaskConfig) { tc.Grant = sign(t, own, much) },
		"no signature": func(_ *driverpb.TaskConfig, tc *TaskConfig) { tc.Grant = unsigned },
		"what was signed, and more": func(_ *driverpb.TaskConfig, tc *TaskConfig) {
			tc.Grant = unsigned + strings.SplitN(sign(t, key, granted()), ".", 3)[2]
		},
		"with an accelerator block": func(_ *driverpb.TaskConfig, tc *TaskConfig) {
			tc.Accelerator, tc.Grant = &accel.Block{}, sign(t, own, much)
		},
		"its own key, named like a child": func(c *driverpb.TaskConfig, tc *TaskConfig) {
			c.JobId, tc.Grant = "llm/dispatch-1-2", sign(t, own, child)
		},
		"a copy, named like a child": func(c *driverpb.TaskConfig, tc *TaskConfig) {
			c.JobId, tc.Grant = "llm/dispatch-1-2", sign(t, key, granted())
		},
		"a copy, with a parent in its env": func(c *driverpb.TaskConfig, tc *TaskConfig) {
			c.JobId, tc.Grant = "mine", sign(t, key, child)
			c.Env = map[string]string{"NOMAD_JOB_PARENT_ID": "llm", "NOMAD_JOB_ID": "llm"}
		},
		"a child's copy, in another namespace": func(c *driverpb.TaskConfig, tc *TaskConfig) {
			c.JobId, c.Namespace, tc.Grant = "llm/dispatch-1-2", "other", sign(t, key, child)
		},
	}
	for at, n := range nodes {
		for by, forge := range paths {
			t.Run(by+" at a node with "+at, func(t *testing.T) {
				t.Parallel()
				cfg, tc := taskOf(reserve(t, slicesOf(accel.NVIDIA, "GPU-1", 0, 20))), TaskConfig{}
				forge(cfg, &tc)
				if s, err := admit(cfg, tc, n.key, n.require); err == nil || len(s.cards)+len(s.asks) != 0 {
					t.Errorf("admitted as %+v, %v", s, err)
				} else if n.key == nil && !errors.Is(err, grant.ErrNoKey) {
					t.Errorf("admit: %v", err)
				}
			})
		}
		t.Run("in env and meta at a node with "+at, func(t *testing.T) {
			t.Parallel()
			cfg := taskOf(nil)
			cfg.Env = reserve(t, whole(accel.NVIDIA, "GPU-1"))
			for _, name := range []string{"grant", "GRANT", "NOMAD_META_grant", "NOMAD_META_GRANT", "HETEROFLOW_GRANT"} {
				cfg.Env[name] = sign(t, own, much)
			}
			tc := TaskConfig{Env: cfg.Env}
			s, err := admit(cfg, tc, n.key, n.require)
			if err != nil || len(s.cards)+len(s.asks) != 0 {
				t.Errorf("admitted as %+v, %v", s, err)
			}
			if env := taskEnv(cfg, tc, s, share.Combined{}); env["NVIDIA_VISIBLE_DEVICES"] != "void" || env[envCards] != "" {
				t.Errorf("the task sees a card: %v", env)
			}
		})
	}
	// Slices that Nomad reserved are had without a grant, and no more of them.
	s, err := admit(taskOf(reserve(t, slicesOf(accel.NVIDIA, "GPU-1", 0, 20))), TaskConfig{}, nil, false)
	if err != nil || len(s.asks) != 1 || s.asks[0].MemoryMiB != 20480 || s.asks[0].QoS != "" {
		t.Errorf("device blocks alone, without a key: %+v, %v", s, err)
	}
}

func TestAdmit_Accepts(t *testing.T) {
	t.Parallel()
	key := testKey(t)
	cases := map[string]struct {
		grant   func(*grant.Grant)
		none    bool
		devices []grant.Reservation
		job     string
		want    admission
	}{
		"a share": {devices: []grant.Reservation{slicesOf(accel.NVIDIA, "GPU-1", 3, 20)}, want: admission{memoryMiB: 20480, computePct: 30, qos: accel.Silver}},
		"a share rounded up to slices": {
			grant: func(g *grant.Grant) { g.MemoryMiB = 20000 }, devices: []grant.Reservation{slicesOf(accel.NVIDIA, "GPU-1", 3, 20)},
			want: admission{memoryMiB: 20000, computePct: 30, qos: accel.Silver},
		},
		"a share given as a whole card": {devices: []grant.Reservation{whole(accel.NVIDIA, "GPU-1")}, want: admission{memoryMiB: 20480, computePct: 30, qos: accel.Silver}},
		"a whole card as all its slices": {
			grant: func(g *grant.Grant) { g.MemoryMiB, g.ComputePct, g.QoS = 0, 0, "" }, devices: []grant.Reservation{slicesOf(accel.NVIDIA, "GPU-1", 0, 79)},
			want: admission{memoryMiB: 80896, qos: accel.Gold},
		},
		"two blocks of one card": {devices: []grant.Reservation{slicesOf(accel.NVIDIA, "GPU-1", 0, 10), func() grant.Reservation {
			r := slicesOf(accel.NVIDIA, "GPU-1", 0, 10)
			for i := range r.Instances {
				r.Instances[i] += "0" // others of the card's slices
			}
			return r
		}()}, want: admission{memoryMiB: 20480, computePct: 30, qos: accel.Silver}},
		"any brand":             {grant: func(g *grant.Grant) { g.Vendors = nil }, devices: []grant.Reservation{slicesOf(accel.Hygon, "H-1", 0, 20)}, want: admission{memoryMiB: 20480, computePct: 30, qos: accel.Silver}},
		"a dispatched child":    {grant: func(g *grant.Grant) { g.Children = grant.Dispatched }, job: "llm/dispatch-1700000000-ab12cd34", devices: []grant.Reservation{slicesOf(accel.NVIDIA, "GPU-1", 0, 20)}, want: admission{memoryMiB: 20480, computePct: 30, qos: accel.Silver}},
		"a periodic child":      {grant: func(g *grant.Grant) { g.Children = grant.Periodic }, job: "llm/periodic-1700000000", devices: []grant.Reservation{slicesOf(accel.NVIDIA, "GPU-1", 0, 20)}, want: admission{memoryMiB: 20480, computePct: 30, qos: accel.Silver}},
		"device blocks alone":   {none: true, devices: []grant.Reservation{slicesOf(accel.NVIDIA, "GPU-1", 0, 5)}, want: admission{memoryMiB: 5120, qos: accel.Bronze}},
		"whole cards alone":     {none: true, devices: []grant.Reservation{whole(accel.Ascend, "A-1", "A-2")}, want: admission{memoryMiB: 65536, qos: accel.Gold}},
		"no accelerator":        {none: true},
		"memory unknown of one": {none: true, devices: []grant.Reservation{whole(accel.Ascend, "A-1"), {Vendor: accel.AMD, Form: accel.Whole, Instances: []string{"X"}, Cards: []grant.Card{{UUID: "X", Units: 1}}}, whole(accel.Hygon, "H-1")}, want: admission{qos: accel.Gold}},
		"two brands in a task":  {none: true, devices: []grant.Reservation{whole(accel.Ascend, "A-1"), whole(accel.NVIDIA, "GPU-1")}, want: admission{memoryMiB: 65536, qos: accel.Gold}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := granted()
			if c.grant != nil {
				c.grant(&g)
			}
			tc := TaskConfig{Grant: sign(t, key, g)}
			if c.none {
				tc.Grant = ""
			}
			cfg := taskOf(reserve(t, c.devices...))
			if c.job != "" {
				cfg.JobId = c.job
			}
			got, err := admit(cfg, tc, key.Public().(ed25519.PublicKey), false)
			if err != nil {
				t.Fatal(err)
			}
			got.cards = nil
			if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(admission{}), cmpopts.IgnoreFields(admission{}, "asks")); diff != "" {
				t.Errorf("share (-want +got):\n%s", diff)
			}
		})
	}
}

func TestImage_ByGrantedBrand(t *testing.T) {
	t.Parallel()
	shareOf := func(vs ...accel.Vendor) admission {
		var s admission
		for _, v := range vs {
			s.cards = append(s.cards, accel.Card{Vendor: v, UUID: "x"})
		}
		return s
	}
	images := map[string]string{"nvidia": "cuda:1", "Ascend": "cann:1"}
	for name, c := range map[string]struct {
		share    admission
		tc       TaskConfig
		want     string
		wantFail string
	}{
		"nvidia":                      {share: shareOf(accel.NVIDIA), tc: TaskConfig{Images: images, Image: "any"}, want: "cuda:1"},
		"ascend, whatever the case":   {share: shareOf(accel.Ascend), tc: TaskConfig{Images: images}, want: "cann:1"},
		"a brand without, with image": {share: shareOf(accel.AMD), tc: TaskConfig{Images: images, Image: "any"}, want: "any"},
		"a brand without":             {share: shareOf(accel.AMD), tc: TaskConfig{Images: images}, wantFail: "add images = { amd ="},
		"no card, with image":         {tc: TaskConfig{Images: images, Image: "cpu"}, want: "cpu"},
		"no card":                     {tc: TaskConfig{Images: images}, wantFail: `write image = "…" too`},
		"two brands, one image":       {share: shareOf(accel.AMD, accel.Ascend), tc: TaskConfig{Images: images}, want: "cann:1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := c.share.image(c.tc)
			if got != c.want || (err != nil) != (c.wantFail != "") || err != nil && !strings.Contains(err.Error(), c.wantFail) {
				t.Errorf("image = %q, %v; want %q, %q", got, err, c.want, c.wantFail)
			}
		})
	}
}

func TestTaskEnv_NothingWidensTheGrant(t *testing.T) {
	t.Parallel()
	// Every variable of every brand, from each source a job controls.
	wide := map[string]string{"HETEROFLOW_CARDS": "all", "HETEROFLOW_MEMORY_MIB": "999999", "HETEROFLOW_QOS": "gold", "KEEP": "1", "NVIDIA_DRIVER_CAPABILITIES": "compute"}
	for name := range accel.VisibleEnv(nil) {
		wide[name] = "all"
	}
	for name, c := range map[string]struct {
		reservations []grant.Reservation
		want         map[string]string
	}{
		"no card": {want: map[string]string{
			"NVIDIA_VISIBLE_DEVICES": "void", "CUDA_VISIBLE_DEVICES": "-1", "ASCEND_VISIBLE_DEVICES": "void", "HIP_VISIBLE_DEVICES": "-1",
			"HETEROFLOW_CARDS": "", "HETEROFLOW_MEMORY_MIB": "", "HETEROFLOW_QOS": "", "KEEP": "1",
		}},
		"one brand": {
			reservations: []grant.Reservation{slicesOf(accel.NVIDIA, "GPU-7", 7, 4)},
			want: map[string]string{
				"NVIDIA_VISIBLE_DEVICES": "GPU-7", "CUDA_VISIBLE_DEVICES": "GPU-7", "ASCEND_VISIBLE_DEVICES": "void",
				"HETEROFLOW_CARDS": "GPU-7", "HETEROFLOW_VENDOR": "nvidia", "HETEROFLOW_MEMORY_MIB": "4096", "HETEROFLOW_QOS": "bronze", "HETEROFLOW_COMPUTE_PCT": "",
			},
		},
		"two blocks of one brand": {
			reservations: []grant.Reservation{slicesOf(accel.NVIDIA, "GPU-1", 0, 4), slicesOf(accel.NVIDIA, "GPU-2", 1, 8)},
			want:         map[string]string{"HETEROFLOW_MEMORY_MIB": "4096", "HETEROFLOW_VENDOR": "nvidia"},
		},
		"two brands": {
			reservations: []grant.Reservation{whole(accel.Ascend, "A-1", "A-2"), whole(accel.NVIDIA, "GPU-1")},
			want: map[string]string{
				"NVIDIA_VISIBLE_DEVICES": "GPU-1", "ASCEND_VISIBLE_DEVICES": "0,1", "ASCEND_RT_VISIBLE_DEVICES": "0,1",
				"HETEROFLOW_VENDOR": "nvidia,ascend", "AMD_VISIBLE_DEVICES": "void",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := taskOf(reserve(t, c.reservations...))
			cfg.Env = wide
			for k, v := range wide { // another device plugin may set them too
				cfg.DeviceEnv[k] = v
			}
			s, err := admit(cfg, TaskConfig{}, nil, false)
			if err != nil {
				t.Fatal(err)
			}
			env := taskEnv(cfg, TaskConfig{Env: wide}, s, share.Combined{})
			for k, want := range c.want {
				if env[k] != want {
					t.Errorf("%s = %q, want %q", k, env[k], want)
				}
			}
			for k, v := range env {
				if strings.HasPrefix(k, grant.EnvPrefix) {
					t.Errorf("%s is for the driver, the task has it", k)
				}
				if v == "all" {
					t.Errorf("%s is still what the job wrote", k)
				}
			}
			if name == "two blocks of one brand" {
				for _, uuid := range []string{"GPU-1", "GPU-2"} {
					if !strings.Contains(env["NVIDIA_VISIBLE_DEVICES"], uuid) {
						t.Errorf("NVIDIA_VISIBLE_DEVICES = %q lacks %s", env["NVIDIA_VISIBLE_DEVICES"], uuid)
					}
				}
			}
		})
	}
}
