package nvidia

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/device-plugins/diagnose"
	"github.com/heteroflow/heteroflow/device-plugins/diagnose/mask"
	"github.com/heteroflow/heteroflow/device-plugins/hostfs"
	"github.com/heteroflow/heteroflow/device-plugins/vendorcli"
)

// host is a machine with one card on the bus, and the files named.
func host(driver string, files ...string) hostfs.Snapshot {
	s := hostfs.NewSnapshot()
	const dir = "sys/bus/pci/devices/0000:01:00.0/"
	s.Folders["sys/bus/pci/devices"] = []string{"0000:01:00.0"}
	for name, text := range map[string]string{"vendor": "0x10de", "device": "0x2684", "class": "0x030200", "revision": "0xa1"} {
		s.Texts[dir+name] = text
	}
	if driver != "" {
		s.Links[dir+"driver"] = "../../../bus/pci/drivers/" + driver
	}
	for _, file := range files {
		s.Present[file], s.Usable[file] = true, true
		folder, name := filepath.Split(file)
		s.Folders[strings.TrimSuffix(folder, "/")] = append(s.Folders[strings.TrimSuffix(folder, "/")], name)
	}
	return s
}

var loaded = []string{"sys/module/nvidia", "sys/module/nvidia_uvm", "dev/nvidiactl", "dev/nvidia0", "dev/nvidia-uvm"}

// Each broken host is told by what is missing there, and by nothing else.
func TestDiagnose_BrokenHosts(t *testing.T) {
	t.Parallel()
	said := func(text string) vendorcli.Recording {
		var made vendorcli.Recording
		for _, args := range [][]string{{"--query-gpu=" + queryTiers[0], "--format=csv"}, {"-L"}, nil, {"-q", "-x"}, {"-q"}} {
			made.Calls = append(made.Calls, vendorcli.Call{Argv: append([]string{"nvidia-smi"}, args...), ExitCode: 9, Stdout: text})
		}
		return made
	}
	good := said("index, uuid, name, pci.bus_id, memory.total [MiB], driver_version\n0, GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c, NVIDIA RTX 4090, 00000000:01:00.0, 24564 MiB, 550.54\n")
	hung := vendorcli.Recording{Calls: []vendorcli.Call{{Argv: good.Calls[0].Argv, Failure: vendorcli.TimeLimit}}}
	noRuntime, noSetup := good, good
	noRuntime.Looks = map[string]string{"docker": "/usr/bin/docker"}
	noSetup.Looks = map[string]string{"docker": "/usr/bin/docker", "nvidia-ctk": "/usr/bin/nvidia-ctk"}
	unloaded := host("")
	unloaded.Texts["proc/sys/kernel/osrelease"] = "6.8.0"
	unloaded.Texts["lib/modules/6.8.0/modules.dep"] = "updates/dkms/nvidia.ko.zst:"
	denied := host("nvidia", loaded...)
	denied.Usable["dev/nvidia0"] = false
	cases := map[string]struct {
		files hostfs.Snapshot
		tools vendorcli.Recording
		want  []string // kind and the beginning of the fix
	}{
		"all is well":                {host("nvidia", loaded...), good, nil},
		"no driver":                  {host(""), vendorcli.Recording{}, []string{"driver: install the driver: sudo apt install nvidia-open"}},
		"nouveau":                    {host("nouveau"), vendorcli.Recording{}, []string{`driver: echo "blacklist nouveau"`}},
		"the module is not loaded":   {unloaded, said("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."), []string{"kernel_module: sudo modprobe nvidia;"}},
		"no device nodes":            {host("nvidia", loaded[:2]...), good, []string{"device_node: sudo nvidia-modprobe -c 0 -u", "device_node: sudo nvidia-modprobe -c 0 -u", "device_node: sudo nvidia-modprobe -c 0 -u"}},
		"no right":                   {denied, good, []string{"permission: run the Nomad agent"}},
		"no tool":                    {host("nvidia", loaded...), vendorcli.Recording{}, []string{"tool: install nvidia-smi of the same version"}},
		"an update without restart":  {host("nvidia", loaded...), said("Failed to initialize NVML: Driver/library version mismatch"), []string{"library: restart the machine"}},
		"a tool that hangs":          {host("nvidia", loaded...), hung, []string{"tool_hangs: run it by hand"}},
		"a tool that prints nothing": {host("nvidia", loaded...), said("hello"), []string{"tool_fails: run it by hand"}},
		"no container toolkit":       {host("nvidia", loaded...), noRuntime, []string{"runtime: sudo apt install nvidia-container-toolkit"}},
		"docker is not set up":       {host("nvidia", loaded...), noSetup, []string{"docker_runtime: sudo nvidia-ctk runtime configure --runtime=docker"}},
		"a card is lost":             {host("nvidia", loaded...), said("Unable to determine the device handle for GPU0000:01:00.0: GPU is lost.  Reboot the system to recover this GPU\n"), nil},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := New(Config{Files: hostfs.Replay(tc.files), Tools: vendorcli.Replay(tc.tools), NoLibrary: true}, hclog.NewNullLogger())
			b, err := d.Diagnose(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for i, l := range b.Lacks {
				text := fmt.Sprintf("%s: %s", l.Kind, l.Do)
				if i < len(tc.want) {
					text = text[:min(len(text), len(tc.want[i]))]
				}
				got = append(got, text)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s\n%+v", diff, b)
			}
		})
	}
}

// A recording of a version that asked for fewer fields is read, too.
func TestDetect_RecordingOfAnotherVersion(t *testing.T) {
	t.Parallel()
	made := vendorcli.Recording{Calls: []vendorcli.Call{{
		Argv:   []string{"nvidia-smi", "--query-gpu=" + queryTiers[len(queryTiers)-1], "--format=csv"},
		Stdout: "index, uuid, name, pci.bus_id, memory.total [MiB], driver_version\n0, GPU-a, A40, 00000000:01:00.0, 46068 MiB, 550.54\n",
	}}}
	d := New(Config{Files: hostfs.Replay(host("nvidia")), Tools: vendorcli.Replay(made), NoLibrary: true}, hclog.NewNullLogger())
	cards, err := d.Detect(context.Background())
	if err != nil || len(cards) != 1 || cards[0].UUID != "GPU-a" {
		t.Errorf("%+v, %v", cards, err)
	}
}

func TestDiagnose_Library(t *testing.T) {
	t.Parallel()
	d := New(Config{Files: hostfs.Replay(host("nvidia", loaded...)), Tools: vendorcli.Replay(vendorcli.Recording{}), NoLibrary: true}, hclog.NewNullLogger())
	name := ""
	for want, answer := range map[diagnose.State]func() (report, error){
		diagnose.Works:   func() (report, error) { return report{gpus: []gpu{{uuid: "GPU-a", name: "A40"}}}, nil },
		diagnose.Missing: func() (report, error) { return report{}, errNVMLAbsent },
		diagnose.Failed:  func() (report, error) { return report{}, errors.New("start nvml: Unknown Error") },
	} {
		d.nvml = answer
		b, err := d.Diagnose(context.Background())
		if err != nil || b.Paths[0].State != want || b.Paths[0].Kind != diagnose.Library {
			t.Errorf("%+v, %v, want %s", b.Paths, err, want)
		}
		name = b.Paths[0].Name
	}
	if !strings.Contains(name, "libnvidia-ml.so.1") {
		t.Errorf("the library is called %q", name)
	}
}

func TestSecrets(t *testing.T) {
	t.Parallel()
	d := New(Config{NoLibrary: true}, hclog.NewNullLogger())
	body, err := os.ReadFile(filepath.Join("testdata", "standin", "boxes", "h100-mig", "list.txt"))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(d.Secrets(string(body))); n != 5 {
		t.Errorf("%d secrets in the list", n)
	}
	got := d.Secrets(`|    0   N/A  N/A            4711      C   python3 train.py --key x            1234MiB |` + "\n        Process ID                        : 4712\n            Type                          : C\n            Name                          : /opt/run me\n")
	want := []mask.Secret{{Kind: mask.Command, Value: "python3 train.py --key x", With: "4711"}, {Kind: mask.Command, Value: "/opt/run me", With: "Name"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
