package access

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// cardNodesOf are the nodes of each brand's card by its number, as the device plugin names them.
var nodesOf = map[accel.Vendor]func(n int) []string{
	accel.NVIDIA:    func(n int) []string { return []string{fmt.Sprintf("/dev/nvidia%d", n)} },
	accel.MThreads:  func(n int) []string { return []string{fmt.Sprintf("/dev/mtgpu.%d", n)} },
	accel.Hygon:     func(n int) []string { return []string{fmt.Sprintf("/dev/dri/renderD%d", 140+n)} },
	accel.Cambricon: func(n int) []string { return []string{fmt.Sprintf("/dev/cambricon_dev%d", n)} },
	accel.Biren:     func(n int) []string { return []string{fmt.Sprintf("/dev/biren/card_%d", n)} },
	accel.Ascend:    func(n int) []string { return []string{fmt.Sprintf("/dev/davinci%d", n)} },
	accel.Kunlunxin: func(n int) []string { return []string{fmt.Sprintf("/dev/xpu%d", n)} },
	accel.AMD:       func(n int) []string { return []string{"/dev/kfd", fmt.Sprintf("/dev/dri/renderD%d", 128+n)} },
	accel.MetaX:     func(n int) []string { return []string{fmt.Sprintf("/dev/dri/renderD%d", 160+n)} },
	accel.Iluvatar:  func(n int) []string { return []string{fmt.Sprintf("/dev/iluvatar%d", n)} },
	accel.Enflame:   func(n int) []string { return []string{fmt.Sprintf("/dev/gcu%d", n)} },
	accel.Intel:     func(n int) []string { return []string{fmt.Sprintf("/dev/dri/renderD%d", 180+n)} },
}

func cardOf(v accel.Vendor, n int) Card {
	return Card{Vendor: v, UUID: fmt.Sprintf("%s-card-%d", v, n), Index: n, Nodes: nodesOf[v](n)}
}

// hostWith is a host on which every node below /dev is there but those in absent, and every driver is installed.
func hostWith(runtimes []string, absent ...string) Host {
	return Host{
		Runtimes: runtimes,
		Node:     func(path string) NodeInfo { return NodeInfo{Device: !slices.Contains(absent, path)} },
		Exists:   func(path string) bool { return !slices.Contains(absent, path) },
		List:     func(string) []string { return nil },
	}
}

func cdiDevice(name string, nodes ...string) CDIDevice {
	d := CDIDevice{Name: name}
	for _, path := range nodes {
		d.Edits.Nodes = append(d.Edits.Nodes, struct {
			Path     string `yaml:"path"`
			HostPath string `yaml:"hostPath"`
		}{Path: path})
	}
	return d
}

func TestBrands_EveryBrandHasARow(t *testing.T) {
	t.Parallel()
	for _, v := range accel.Vendors() {
		b, ok := brands[v]
		if !ok || b.fixNode == "" || len(b.cards) == 0 || len(b.cdi) == 0 {
			t.Errorf("%s: row is missing or has gaps: %+v", v, b)
		}
		if b.needsRuntime && (b.runtime == "" || b.fixRuntime == "") {
			t.Errorf("%s: needs a runtime that has no name or no fix", v)
		}
		if slices.ContainsFunc(b.mounts, func(m string) bool { return !strings.HasSuffix(m, "?") }) && b.fixDriver == "" {
			t.Errorf("%s: needs a mount and does not say how it gets there", v)
		}
		for n := range 3 {
			nodes := b.telling(nodesOf[v](n))
			if len(nodes) == 0 || !IsCardNode(nodes[0]) {
				t.Errorf("%s: nodes of card %d are not known for a card's: %v", v, n, nodesOf[v](n))
			}
		}
	}
}

func TestPlan(t *testing.T) {
	t.Parallel()
	nv := func(n int) Card { return cardOf(accel.NVIDIA, n) }
	mig := Card{Vendor: accel.NVIDIA, UUID: "MIG-1", Part: true, Nodes: []string{"/dev/nvidia0"}}
	withCDI := func(h Host, kind string, devices ...CDIDevice) Host {
		h.Specs = append(slices.Clone(h.Specs), Spec{Kind: kind, Devices: devices})
		return h
	}
	nvSpec := []CDIDevice{
		cdiDevice("0", "/dev/nvidia0", "/dev/nvidiactl"), cdiDevice("1", "/dev/nvidia1", "/dev/nvidiactl"), cdiDevice("all", "/dev/nvidia0", "/dev/nvidia1"),
		cdiDevice("MIG-1", "/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap12"), cdiDevice("0:1", "/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap21"),
	}
	both := hostWith([]string{"runc", "nvidia", "mthreads"})
	for name, c := range map[string]struct {
		host    Host
		cards   []Card
		wish    string
		want    Access
		refused string
	}{
		"no card":       {host: both},
		"a simulated":   {host: hostWith(nil), cards: []Card{{Vendor: accel.NVIDIA, UUID: "SIM-NVIDIA-1"}}},
		"by runtime":    {host: both, cards: []Card{nv(1)}, want: Access{Runtime: "nvidia", How: map[accel.Vendor]Method{accel.NVIDIA: ByRuntime}}},
		"by CDI":        {host: withCDI(both, "nvidia.com/gpu", nvSpec...), cards: []Card{nv(1)}, want: Access{CDI: []string{"nvidia.com/gpu=1"}, How: map[accel.Vendor]Method{accel.NVIDIA: ByCDI}}},
		"a stale CDI":   {host: withCDI(both, "nvidia.com/gpu", cdiDevice(nv(1).UUID, "/dev/nvidia0")), cards: []Card{nv(1)}, want: Access{Runtime: "nvidia", How: map[accel.Vendor]Method{accel.NVIDIA: ByRuntime}}},
		"MIG by CDI":    {host: withCDI(both, "nvidia.com/gpu", nvSpec...), cards: []Card{mig}, want: Access{CDI: []string{"nvidia.com/gpu=MIG-1"}, How: map[accel.Vendor]Method{accel.NVIDIA: ByCDI}}},
		"MIG not named": {host: withCDI(both, "nvidia.com/gpu", nvSpec[:3]...), cards: []Card{mig}, want: Access{Runtime: "nvidia", How: map[accel.Vendor]Method{accel.NVIDIA: ByRuntime}}},
		"by nodes":      {host: both, cards: []Card{cardOf(accel.Ascend, 3)}, want: Access{How: map[accel.Vendor]Method{accel.Ascend: ByNodes}}},
		"two brands, one runtime": {host: both, cards: []Card{nv(0), cardOf(accel.Ascend, 3)}, want: Access{
			Runtime: "nvidia", How: map[accel.Vendor]Method{accel.NVIDIA: ByRuntime, accel.Ascend: ByNodes},
		}},
		"two runtimes": {host: both, cards: []Card{nv(0), cardOf(accel.MThreads, 0)}, refused: "a container has one: put the brands into two tasks"},
		"two runtimes, one by CDI": {
			host: withCDI(both, "nvidia.com/gpu", nvSpec...), cards: []Card{nv(0), cardOf(accel.MThreads, 0)},
			want: Access{Runtime: "mthreads", CDI: []string{"nvidia.com/gpu=0"}, How: map[accel.Vendor]Method{accel.NVIDIA: ByCDI, accel.MThreads: ByRuntime}},
		},
		"the brand with a choice gives way": {host: hostWith([]string{"ascend", "mthreads"}), cards: []Card{cardOf(accel.Ascend, 0), cardOf(accel.MThreads, 0)}, want: Access{
			Runtime: "mthreads", How: map[accel.Vendor]Method{accel.Ascend: ByNodes, accel.MThreads: ByRuntime},
		}},
		"no runtime":                       {host: hostWith([]string{"runc"}), cards: []Card{nv(0)}, refused: "sudo nvidia-ctk runtime configure --runtime=docker"},
		"no node":                          {host: hostWith([]string{"nvidia"}, "/dev/nvidia0"), cards: []Card{nv(0)}, refused: "device node /dev/nvidia0 of card nvidia-card-0 is not there: sudo nvidia-modprobe"},
		"no driver":                        {host: hostWith(nil, "/usr/local/Ascend/driver"), cards: []Card{cardOf(accel.Ascend, 0)}, refused: "/usr/local/Ascend/driver is not there: install the driver"},
		"no manager":                       {host: hostWith(nil, "/dev/devmm_svm"), cards: []Card{cardOf(accel.Ascend, 0)}, refused: "/dev/devmm_svm is not there"},
		"no nodes known":                   {host: hostWith(nil), cards: []Card{{Vendor: accel.Kunlunxin, UUID: "K-1"}}, refused: "no device node of card K-1 is known"},
		"no device":                        {host: hostWith(nil), cards: []Card{{Vendor: accel.Kunlunxin, UUID: "K-1", Nodes: []string{"/etc/passwd"}}}, refused: "no path below /dev"},
		"out of /dev":                      {host: hostWith(nil), cards: []Card{{Vendor: accel.Kunlunxin, UUID: "K-1", Nodes: []string{"/dev/../etc/passwd"}}}, refused: "no path below /dev"},
		"the job's runtime is the brand's": {host: both, cards: []Card{nv(0)}, wish: "nvidia", want: Access{Runtime: "nvidia", How: map[accel.Vendor]Method{accel.NVIDIA: ByRuntime}}},
		"the job's runtime is another":     {host: both, cards: []Card{nv(0)}, wish: "kata", refused: "leave oci_runtime out"},
		"the job's runtime beside nodes":   {host: both, cards: []Card{cardOf(accel.Ascend, 0)}, wish: "kata", want: Access{Runtime: "kata", How: map[accel.Vendor]Method{accel.Ascend: ByNodes}}},
		"the job's runtime without a card": {host: both, wish: "kata", want: Access{Runtime: "kata"}},
		"a share's runtime":                {host: both, cards: []Card{{Vendor: accel.Ascend, UUID: "A", Nodes: []string{"/dev/davinci0"}, Runtime: "ascend"}}, refused: `the share of brand ascend needs the runtime "ascend", which the Docker daemon does not have`},
		"a runtime by another name": {host: func() Host {
			h := hostWith([]string{"nv2"})
			h.Names = map[accel.Vendor]string{accel.NVIDIA: "nv2"}
			return h
		}(), cards: []Card{nv(0)}, want: Access{Runtime: "nv2", How: map[accel.Vendor]Method{accel.NVIDIA: ByRuntime}}},
		"nodes in place of the card's own": {host: hostWith(nil, "/dev/davinci0"), cards: []Card{{Vendor: accel.Ascend, UUID: "A", Nodes: []string{"/dev/davinci0"}, Extra: []string{"/dev/vdavinci100"}, Instead: true}}, want: Access{How: map[accel.Vendor]Method{accel.Ascend: ByNodes}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := Plan(c.host, c.cards, c.wish)
			if c.refused != "" {
				if err == nil || !strings.Contains(err.Error(), c.refused) {
					t.Errorf("err = %v, want %q", err, c.refused)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got.Nodes, got.Mounts = nil, nil // see the other tests
			if len(got.How) == 0 {
				got.How = nil
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("access (-want +got):\n%s", diff)
			}
		})
	}
}

// What is put into a container of each way, word for word.
func TestPlan_NodesAndMounts(t *testing.T) {
	t.Parallel()
	h := hostWith([]string{"nvidia"}, "/dev/nvidia-modeset", "/dev/uburma", "/dev/ummu", "/dev/dvpp_cmdlist", "/etc/ascend_install.info")
	plain := h.Node
	h.Node = func(path string) NodeInfo {
		n := plain(path)
		if strings.HasPrefix(path, "/dev/dri/") {
			n.Group = "109"
		}
		return n
	}
	h.List = func(dir string) []string {
		if dir == "/sys/bus/pci/devices/0000:3b:00.0/drm" {
			return []string{"card2", "controlD66", "renderD130"}
		}
		return nil
	}
	for name, c := range map[string]struct {
		card   Card
		nodes  []string
		mounts []string
		groups []string
	}{
		"nvidia": {card: cardOf(accel.NVIDIA, 1), nodes: []string{"/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"}},
		"ascend": {
			card: cardOf(accel.Ascend, 4), nodes: []string{"/dev/davinci4", "/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"},
			mounts: []string{"/usr/local/Ascend/driver", "/usr/local/dcmi", "/usr/local/bin/npu-smi"},
		},
		"virtual npu": {
			card: Card{Vendor: accel.Ascend, UUID: "V", Part: true, Nodes: []string{"/dev/vdavinci100"}}, mounts: []string{"/usr/local/Ascend/driver", "/usr/local/dcmi", "/usr/local/bin/npu-smi"},
			nodes: []string{"/dev/vdavinci100 as /dev/davinci100", "/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"},
		},
		"amd":            {card: cardOf(accel.AMD, 2), nodes: []string{"/dev/kfd", "/dev/dri/renderD130"}, groups: []string{"109"}},
		"a part of amd":  {card: Card{Vendor: accel.AMD, UUID: "P", Part: true, PCI: "0000:3B:00.0", Nodes: []string{"/dev/kfd", "/dev/dri/renderD131"}}, nodes: []string{"/dev/kfd", "/dev/dri/renderD131"}, groups: []string{"109"}},
		"hygon by PCI":   {card: Card{Vendor: accel.Hygon, UUID: "H", PCI: "0000:3b:00.0"}, nodes: []string{"/dev/dri/card2", "/dev/dri/renderD130", "/dev/kfd", "/dev/mkfd"}, mounts: []string{"/opt/hyhal"}, groups: []string{"109"}},
		"intel by PCI":   {card: Card{Vendor: accel.Intel, UUID: "I", PCI: "0000:3b:00.0"}, nodes: []string{"/dev/dri/renderD130"}, groups: []string{"109"}},
		"cambricon pair": {card: cardOf(accel.Cambricon, 7), nodes: []string{"/dev/cambricon_dev7", "/dev/cambricon_ipcm7", "/dev/cambricon_ctl", "/dev/cambricon_gdr", "/dev/cambr-msgq", "/dev/cambr-rpc", "/dev/cmsg_ctrl", "/dev/commu"}, mounts: []string{"/usr/bin/cnmon"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, err := Plan(h, []Card{c.card}, "")
			if err != nil {
				t.Fatal(err)
			}
			var nodes, mounts []string
			for _, n := range a.Nodes {
				text := n.Host
				if n.Inside != n.Host {
					text += " as " + n.Inside
				}
				nodes = append(nodes, text)
			}
			for _, m := range a.Mounts {
				mounts = append(mounts, m.Path)
			}
			if diff := cmp.Diff([][]string{c.nodes, c.mounts, c.groups}, [][]string{nodes, mounts, a.Groups}); diff != "" {
				t.Errorf("nodes, mounts, groups (-want +got):\n%s", diff)
			}
		})
	}
}

// For every set of cards of every brand, on every host: what a container sees are the granted cards, all of them and no
// others, or it is refused.
func TestPlan_ExactlyTheGrant(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		const perBrand = 4
		h := hostWith(rapid.SliceOfDistinct(rapid.SampledFrom(append(Runtimes(), "runc")), rapid.ID).Draw(t, "runtimes"))
		var granted []Card
		for _, v := range accel.Vendors() {
			if !rapid.Bool().Draw(t, string(v)) {
				continue
			}
			for n := range perBrand {
				if rapid.Bool().Draw(t, "granted") {
					granted = append(granted, cardOf(v, n))
				}
			}
			if len(brands[v].cdi) == 0 || !rapid.Bool().Draw(t, "cdi") {
				continue
			}
			// A specification that may be stale: names are shifted against nodes, and there is always one for all.
			shift := rapid.IntRange(0, perBrand-1).Draw(t, "shift")
			spec := Spec{Kind: brands[v].cdi[0] + "/gpu"}
			var all []string
			for n := range perBrand {
				nodes := nodesOf[v]((n + shift) % perBrand)
				all = append(all, nodes...)
				spec.Devices = append(spec.Devices, cdiDevice(fmt.Sprint(n), nodes...), cdiDevice(cardOf(v, n).UUID, nodes...))
			}
			spec.Devices = append(spec.Devices, cdiDevice("all", all...))
			h.Specs = append(h.Specs, spec)
		}
		wish := rapid.SampledFrom([]string{"", "", "kata", "nvidia"}).Draw(t, "wish")
		a, err := Plan(h, granted, wish)
		if err != nil {
			if text := err.Error(); !strings.Contains(text, "sudo") && !strings.Contains(text, "install") && !strings.Contains(text, "two tasks") && !strings.Contains(text, "leave oci_runtime out") {
				t.Fatalf("the refusal does not say what to do: %v", err)
			}
			return
		}
		want, got := map[string]bool{}, map[string]bool{}
		for _, c := range granted {
			for _, path := range brands[c.Vendor].telling(c.Nodes) {
				want[path] = true
			}
		}
		for _, n := range a.Nodes {
			got[n.Host] = IsCardNode(n.Host) && isCard(n.Host)
		}
		for _, name := range a.CDI {
			for _, s := range h.Specs {
				for _, d := range s.Devices {
					if s.Kind+"="+d.Name == name {
						for _, path := range d.Edits.hostNodes() {
							got[path] = isCard(path)
						}
					}
				}
			}
		}
		for path, card := range got {
			if !card || strings.HasPrefix(path, "/dev/cambricon_ipcm") {
				delete(got, path)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("the container sees other cards than granted (-want +got):\n%s", diff)
		}
		if a.Runtime != "" && wish == "" && !slices.Contains(h.Runtimes, a.Runtime) {
			t.Fatalf("runtime %q is not the daemon's", a.Runtime)
		}
		if wish != "" && a.Runtime != wish {
			t.Fatalf("runtime %q, the job asked for %q", a.Runtime, wish)
		}
	})
}

func isCard(path string) bool {
	for _, b := range brands {
		if len(b.telling([]string{path})) > 0 {
			return true
		}
	}
	return false
}

func TestGuards(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]bool{
		"/dev/nvidia0": true, "/dev/nvidiactl": true, "/dev/nvidia-caps/nvidia-cap1": true, "/dev/nvidia-caps": true, "/dev/dri": true, "/dev/dri/card0": true,
		"/dev/kfd": true, "/dev/davinci3": true, "/dev/vdavinci100": true, "/dev/biren/card_0": true, "/dev/biren": true, "/dev/./xpu1": true,
		"/dev/null": false, "/dev/fuse": false, "/dev/infiniband/uverbs0": false, "/dev/nvme0": false,
	} {
		if got := IsCardNode(path); got != want {
			t.Errorf("IsCardNode(%s) = %v", path, got)
		}
	}
	for name, want := range map[string]bool{
		"ASCEND_VNPU_SPECS": true, "ASCEND_RUNTIME_OPTIONS": true, "NVIDIA_MIG_CONFIG_DEVICES": true, "CUDA_DEVICE_MEMORY_LIMIT_1": true,
		"CUDA_DISABLE_CONTROL": true, "BR_PHY_CARDS": true, "NVIDIA_DRIVER_CAPABILITIES": false, "PATH": false, "CUDA_HOME": false,
	} {
		if got := IsGuarded(name); got != want {
			t.Errorf("IsGuarded(%s) = %v", name, got)
		}
	}
	for target, want := range map[string]bool{
		"/var/run/nvidia-container-devices/GPU-1": true, "/run/nvidia-container-devices": true, "/var/run": false, "/run/x/../nvidia-container-devices/0": true,
		"/data": false, "/run/nvidia": false, "/var/lib": false,
	} {
		if got := GuardedTarget(target); got != want {
			t.Errorf("GuardedTarget(%s) = %v", target, got)
		}
	}
}

func TestProbe(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write := func(path, body string) {
		t.Helper()
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(body), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("etc/cdi/nvidia.yaml", "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: \"0\"\n  containerEdits:\n    deviceNodes:\n    - path: /dev/nvidia0\n      hostPath: /dev/nvidia0\n- name: twice\n")
	write("etc/cdi/again.json", `{"cdiVersion":"0.5.0","kind":"nvidia.com/gpu","devices":[{"name":"twice"}]}`)
	write("etc/cdi/README", "not one")
	write("etc/cdi/broken.yaml", "kind: [")
	write("var/run/cdi/newer.json", `{"cdiVersion":"0.5.0","kind":"nvidia.com/gpu","devices":[{"name":"0","containerEdits":{"deviceNodes":[{"path":"/dev/nvidia5"}]}}]}`)
	write("dev/nvidia0", "a file, no device")
	write("sys/bus/pci/devices/0000:3b:00.0/drm/renderD130/dev", "226:130")

	h, err := Probe(root, []string{"runc"}, []string{"/etc/cdi", "/var/run/cdi", "/absent"})
	if err == nil || !strings.Contains(err.Error(), "/etc/cdi/broken.yaml") {
		t.Errorf("probe: %v", err)
	}
	names := map[string][]string{}
	for _, s := range h.Specs {
		for _, d := range s.Devices {
			names[s.Kind+"="+d.Name] = d.Edits.hostNodes()
		}
	}
	if diff := cmp.Diff(map[string][]string{"nvidia.com/gpu=0": {"/dev/nvidia5"}}, names); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
	if h.Node("/dev/nvidia0").Device || h.Node("/dev/none").Device || !h.Exists("/etc/cdi") || h.Exists("/none") {
		t.Error("files are taken for nodes, or are not seen")
	}
	if got := h.List("/sys/bus/pci/devices/0000:3b:00.0/drm"); !slices.Equal(got, []string{"renderD130"}) {
		t.Errorf("list = %v", got)
	}
	real, err := Probe("/", nil, nil)
	if err != nil || !real.Node("/dev/null").Device || real.Node("/dev/null").Group != "" {
		t.Errorf("/dev/null = %+v, %v", real.Node("/dev/null"), err)
	}
}

func FuzzParseSpec(f *testing.F) {
	f.Add([]byte("kind: a.b/c\ndevices:\n- name: x\n  containerEdits: {deviceNodes: [{path: /dev/x}]}\n"))
	f.Add([]byte(`{"kind":"nvidia.com/gpu","devices":null}`))
	f.Add([]byte("a: &a [*a]"))
	f.Fuzz(func(t *testing.T, body []byte) {
		s, err := ParseSpec(body)
		if err == nil && !strings.Contains(s.Kind, "/") {
			t.Errorf("kind %q", s.Kind)
		}
	})
}

// The table in the documents says what the code does.
func TestBrands_DocumentsSayTheSame(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"../../docs/task-driver.md", "../../docs/zh-CN/task-driver.md"} {
		body, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range accel.Vendors() {
			b, found := brands[v], false
			runtime := "—"
			if b.runtime != "" {
				runtime = "`" + b.runtime + "`"
			}
			for line := range strings.Lines(string(body)) {
				cells := strings.Split(line, " | ")
				if len(cells) != 4 || cells[0] != "| `"+string(v)+"`" || !strings.Contains(cells[2], "`"+b.cdi[0]+"`") {
					continue
				}
				found = cells[1] == runtime && strings.Contains(cells[3], "/dev/") == (!b.needsRuntime && !strings.Contains(cells[3], "renderD")) || cells[1] == runtime && strings.Contains(cells[3], "renderD")
			}
			if !found {
				t.Errorf("%s has no row that says how cards of brand %s come into a container", path, v)
			}
		}
	}
}
