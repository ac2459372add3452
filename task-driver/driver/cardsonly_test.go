package driver

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
	"github.com/heteroflow/heteroflow/task-driver/access"
	"github.com/heteroflow/heteroflow/task-driver/docker"
)

// nodeOf is a node of each brand's card, by the card's number.
var nodeOf = map[accel.Vendor]string{
	accel.NVIDIA: "/dev/nvidia%d", accel.MThreads: "/dev/mtgpu.%d", accel.Hygon: "/dev/dri/renderD14%d", accel.Cambricon: "/dev/cambricon_dev%d",
	accel.Biren: "/dev/biren/card_%d", accel.Ascend: "/dev/davinci%d", accel.Kunlunxin: "/dev/xpu%d", accel.AMD: "/dev/dri/renderD12%d",
	accel.MetaX: "/dev/dri/renderD16%d", accel.Iluvatar: "/dev/iluvatar%d", accel.Enflame: "/dev/gcu%d", accel.Intel: "/dev/dri/renderD18%d",
}

// wishes are what a job, its templates or its image may try in order to see a card that was not granted.
type wishes struct {
	env, image map[string]string
	devices    []DeviceConfig
	volumes    []string
	runtime    string
	privileged bool
}

func drawWishes(t *rapid.T) wishes {
	names := []string{"ASCEND_VNPU_SPECS", "ASCEND_RUNTIME_OPTIONS", "NVIDIA_MIG_CONFIG_DEVICES", "DOCKER_RESOURCE_GPU", "CUDA_DISABLE_CONTROL", "BR_PHY_CARDS"}
	for name := range accel.VisibleEnv(nil) {
		names = append(names, name)
	}
	slices.Sort(names)
	some := rapid.MapOf(rapid.SampledFrom(names), rapid.SampledFrom([]string{"all", "0,1,2,3", "GPU-x", ""}))
	w := wishes{env: some.Draw(t, "env"), image: some.Draw(t, "image env")}
	for _, path := range rapid.SliceOfN(rapid.SampledFrom([]string{"/dev/nvidia1", "/dev/dri", "/dev/kfd", "/dev/../dev/davinci2", "/dev/null"}), 0, 2).Draw(t, "devices") {
		w.devices = append(w.devices, DeviceConfig{HostPath: path})
	}
	w.volumes = rapid.SliceOfN(rapid.SampledFrom([]string{"/dev:/host", "/dev/null:/var/run/nvidia-container-devices/GPU-x", "local/x:/run/nvidia-container-devices/all", "local/y:/y"}), 0, 2).Draw(t, "volumes")
	w.runtime = rapid.SampledFrom(append([]string{"", "", "", "runc", "kata"}, access.Runtimes()...)).Draw(t, "runtime")
	w.privileged = rapid.IntRange(0, 9).Draw(t, "privileged") == 0
	return w
}

// cardAt is the n-th card of a brand.
func cardAt(v accel.Vendor, n int) grant.Card {
	return grant.Card{UUID: fmt.Sprintf("%s-%d", v, n), Model: "M", Index: n, MemoryMiB: 65536, Units: 1, Nodes: []string{fmt.Sprintf(nodeOf[v], n)}}
}

// block is a device block with one card, whole or a slice of it.
func block(t rapid.TB, v accel.Vendor, n int, shared bool) (name, value string) {
	card := cardAt(v, n)
	res := grant.Reservation{Vendor: v, Form: accel.Whole, UnitMiB: 65536, Instances: []string{card.UUID}, Cards: []grant.Card{card}}
	if shared {
		res.Form, res.UnitMiB, res.Instances = accel.Shared, 1024, []string{"c" + accel.ShortID(v, card.UUID) + ".0"}
	}
	name, value, err := res.Env()
	if err != nil {
		t.Fatal(err)
	}
	return name, value
}

// Whatever the job's env, templates, image, mounts and devices say, with cards of several brands, each in a device block
// of its own, whole and shared: the container is made with the granted cards and no others, in variables, nodes and
// runtime; or it is refused.
func TestDocker_TaskSeesExactlyItsGrant(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for range 20 { // of few checks each, see TestMain
		rapid.Check(t, func(t *rapid.T) {
			const perBrand = 4
			env := map[string]string{}
			var granted []accel.Card
			for _, v := range rapid.SliceOfNDistinct(rapid.SampledFrom(accel.Vendors()), 0, 3, rapid.ID).Draw(t, "brands") {
				for _, n := range rapid.SliceOfNDistinct(rapid.IntRange(0, perBrand-1), 1, perBrand, rapid.ID).Draw(t, string(v)) {
					name, value := block(t, v, n, rapid.Bool().Draw(t, "shared"))
					env[name] = value
					granted = append(granted, accel.Card{Vendor: v, UUID: cardAt(v, n).UUID, Index: n})
				}
			}
			daemon := rapid.SliceOfDistinct(rapid.SampledFrom(access.Runtimes()), rapid.ID).Draw(t, "daemon")
			seesExactly(t, root, env, granted, drawWishes(t), daemon)
		})
	}
}

// Every brand and every subset of four of its cards, on a node that has all it takes: none is refused.
func TestDocker_EverySubsetOfEveryBrand(t *testing.T) {
	t.Parallel()
	w := wishes{env: map[string]string{"ASCEND_RUNTIME_OPTIONS": "x"}, image: map[string]string{"NVIDIA_MIG_CONFIG_DEVICES": "all"}}
	for name := range accel.VisibleEnv(nil) {
		w.env[name], w.image[name] = "all", "all"
	}
	root := t.TempDir()
	for _, v := range accel.Vendors() {
		for set := range 16 {
			for _, shared := range []bool{false, true} {
				env := map[string]string{}
				var granted []accel.Card
				for n := range 4 {
					if set&(1<<n) == 0 {
						continue
					}
					name, value := block(t, v, n, shared)
					env[name] = value
					granted = append(granted, accel.Card{Vendor: v, UUID: cardAt(v, n).UUID, Index: n})
				}
				if !seesExactly(t, root, env, granted, w, access.Runtimes()) {
					t.Errorf("%s %04b is refused", v, set)
				}
			}
		}
	}
}

// seesExactly makes the request for a container and holds it against the grant; false when it is refused.
func seesExactly(t rapid.TB, root string, env map[string]string, granted []accel.Card, w wishes, daemon []string) bool {
	cfg := &driverpb.TaskConfig{
		Id: allocID + "/web/1", Name: "web", AllocId: allocID, AllocDir: root, DeviceEnv: env, Env: w.env,
		Resources: &driverpb.Resources{LinuxResources: &driverpb.LinuxResources{}},
	}
	tc := TaskConfig{Runtime: runtimeDocker, Image: "app:1", Env: w.env, Devices: w.devices, Volumes: w.volumes, OCIRuntime: w.runtime, Privileged: w.privileged}
	sh, err := admit(cfg, tc, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	p := &plan{cfg: cfg, tc: tc, share: sh}
	if err := p.use(nil); err != nil {
		t.Fatal(err)
	}
	options := &Docker{VolumesEnabled: true, AllowDevices: []string{"/dev/*", "/dev/*/*"}, AllowRuntimes: append(access.Runtimes(), "runc", "kata")}
	if err := options.settle(); err != nil {
		t.Fatal(err)
	}
	r := &dockerRuntime{options: options, stateDir: root, probe: func(runtimes, _ []string) (access.Host, error) {
		yes := func(string) bool { return true }
		return access.Host{Runtimes: runtimes, Node: func(string) access.NodeInfo { return access.NodeInfo{Device: true} }, Exists: yes, List: func(string) []string { return nil }}, nil
	}}
	a, err := r.access(p, docker.Info{Runtimes: append(slices.Clone(daemon), "runc", "kata")})
	if err != nil {
		return false
	}
	image := docker.Image{Env: envList(w.image)}
	c, err := r.container(p, build{image: "app:1", access: a, unset: unset(image, p.env)})
	if err != nil {
		return false
	}
	if w.privileged {
		t.Fatal("privileged was let through")
	}
	checkEnv(t, c.Env, w.image, granted)
	checkNodes(t, c, granted)
	if v, maker := access.BrandOf(c.Runtime, nil); maker && !slices.ContainsFunc(granted, func(c accel.Card) bool { return c.Vendor == v }) {
		t.Fatalf("runtime %s of a brand without a card", c.Runtime)
	}
	return true
}

// checkNodes holds the device nodes and mounts of a container against the grant.
func checkNodes(t rapid.TB, c docker.Container, granted []accel.Card) {
	own, got := map[string]bool{}, map[string]bool{}
	for _, g := range granted {
		own[fmt.Sprintf(nodeOf[g.Vendor], g.Index)] = true
	}
	for _, d := range c.Devices {
		if hasCard(d.HostPath) {
			got[d.HostPath] = true
		}
	}
	if !maps.Equal(got, own) {
		t.Fatalf("nodes %v, granted %v", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(own)))
	}
	for _, m := range c.Mounts {
		if within("/dev", m.Source) || access.GuardedTarget(m.Target) {
			t.Fatalf("mount %+v", m)
		}
	}
}

// hasCard reports whether the node is one card's, not the driver's for all.
func hasCard(path string) bool {
	for _, pattern := range nodeOf {
		for n := range 10 {
			if path == fmt.Sprintf(pattern, n) {
				return true
			}
		}
	}
	return false
}

// checkEnv holds what a container's processes see, the image's defaults under what it is made with, against the grant.
func checkEnv(t rapid.TB, list []string, image map[string]string, granted []accel.Card) {
	seen := maps.Clone(image)
	if seen == nil {
		seen = map[string]string{}
	}
	for _, pair := range list {
		name, value, set := strings.Cut(pair, "=")
		if seen[name] = value; !set {
			delete(seen, name) // as the Engine takes a name without a value
		}
	}
	env, unset := accel.VisibleEnvInside(granted, nil)
	for _, name := range unset {
		if value, there := seen[name]; there {
			t.Fatalf("%s = %q, and nothing tells how it counts in a container", name, value)
		}
	}
	for name, want := range env {
		if sortedList(seen[name]) != sortedList(want) { // in the order of the device blocks
			t.Fatalf("%s = %q, want %q", name, seen[name], want)
		}
	}
	for name := range seen {
		if access.IsGuarded(name) {
			body, err := json.Marshal(seen)
			t.Fatalf("the job set %s: %s, %v", name, body, err)
		}
	}
}

func sortedList(text string) string {
	parts := strings.Split(text, ",")
	slices.Sort(parts)
	return strings.Join(parts, ",")
}
