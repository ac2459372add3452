package diagnose_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/device-plugins/diagnose"
	"github.com/heteroflow/heteroflow/device-plugins/hostfs"
	"github.com/heteroflow/heteroflow/device-plugins/vendorcli"
	"github.com/heteroflow/heteroflow/internal/accel"
)

// setup is a brand with everything that a brand can have.
func setup() diagnose.Setup {
	fix := func(do string) diagnose.Fix { return diagnose.Fix{Do: do, See: "https://maker.example/" + do} }
	return diagnose.Setup{
		Modules: []string{"acme", "acme-old"},
		Wrong:   map[string]diagnose.Fix{"nouveau": fix("blacklist")},
		Extra:   map[string]diagnose.Fix{"acme_uvm": fix("load uvm")},
		Nodes:   []diagnose.Node{{Pattern: "dev/acmectl", Fix: fix("make nodes")}, {Pattern: "dev/acme[0-9]*", Fix: fix("make nodes")}},
		Groups:  []string{"render", "acme"},
		Driver:  fix("install driver"),
		Tool:    fix("install tool"),
		Runtime: &diagnose.Runtime{Name: "acme", Programs: []string{"acme-ctk", "/opt/acme/runtime"}, Install: fix("install toolkit"), Configure: fix("configure docker")},
		Sayings: []diagnose.Saying{
			{Text: "version mismatch", Kind: diagnose.NoLibrary, What: "two versions", Fix: fix("restart")},
			{Text: "card is lost", Kind: diagnose.CardSilent, What: "a card is lost", Fix: fix("restart")},
		},
	}
}

// A scene is a machine in few words. The zero value is one on which all is well but that nothing is on it.
type scene struct {
	bus    []hostfs.PCIDevice
	files  []string // that are there
	denied []string // of them, that may not be used
	texts  map[string]string
	looks  []string // programs found
	tool   diagnose.State
	said   string
	sick   bool
	bare   bool // the brand says nothing of what it needs
}

const card = "0000:01:00.0"

func device(driver string) hostfs.PCIDevice {
	return hostfs.PCIDevice{Address: card, Vendor: "1234", Device: "0001", Class: "1200", Driver: driver, Answers: true}
}

// well are the files of a machine with a loaded driver.
var well = []string{"sys/module/acme", "sys/module/acme_uvm", "dev/acmectl", "dev/acme0"}

func (s scene) examine() diagnose.Brand {
	snap := hostfs.NewSnapshot()
	snap.Folders["sys/bus/pci/devices"] = []string{card}
	for _, file := range s.files {
		snap.Present[file], snap.Usable[file] = true, true
		at := strings.LastIndexByte(file, '/')
		snap.Folders[file[:at]] = append(snap.Folders[file[:at]], file[at+1:])
	}
	for _, file := range s.denied {
		snap.Usable[file] = false
	}
	for name, text := range s.texts {
		snap.Texts[name] = text
	}
	made := vendorcli.Recording{Looks: map[string]string{}}
	for _, program := range s.looks {
		made.Looks[program] = "/usr/bin/" + program
	}
	c := diagnose.Case{
		Vendor: "acme", Setup: setup(), Files: hostfs.Replay(snap), Tools: vendorcli.Replay(made), Bus: s.bus, Said: []string{s.said},
		Paths: []diagnose.Path{{Name: "libacme", Kind: diagnose.Library, State: diagnose.NotTried}, {Name: "acme-smi", Kind: diagnose.Tool, State: s.tool, Detail: "said so"}},
	}
	if s.bare {
		c.Setup = diagnose.Setup{}
	}
	if len(s.bus) > 0 {
		c.Cards = []accel.Card{{UUID: "x", Health: accel.Health{OK: !s.sick}}}
	}
	return diagnose.Examine(c)
}

func TestExamine_EveryLack(t *testing.T) {
	t.Parallel()
	with := func(files []string, more ...string) []string { return append(append([]string{}, files...), more...) }
	release := map[string]string{"proc/sys/kernel/osrelease": "6.8.0", "lib/modules/6.8.0/modules.dep": "kernel/drivers/x.ko:\nupdates/dkms/acme-old.ko.zst: kernel/y.ko\n"}
	docker := map[string]string{"etc/docker/daemon.json": `{"runtimes":{"acme":{"path":"x"}},"default-runtime":"runc"}`}
	silent := device("acme")
	silent.Answers = false
	cases := map[string]struct {
		scene
		want []string // kind: what → do
	}{
		"all is well": {scene{bus: []hostfs.PCIDevice{device("acme")}, files: well, tool: diagnose.Works}, nil},
		"the driver is not installed": {
			scene{bus: []hostfs.PCIDevice{device("")}, tool: diagnose.Missing},
			[]string{"driver: the driver is not installed: the kernel has no module acme → install driver"},
		},
		"the driver is not installed for this kernel": {
			scene{bus: []hostfs.PCIDevice{device("")}, tool: diagnose.Failed, texts: map[string]string{"proc/sys/kernel/osrelease": "6.9.0", "lib/modules/6.9.0/modules.dep": "kernel/acme-x.ko:"}},
			[]string{"driver: the driver is not installed: the kernel has no module acme → install driver"},
		},
		"the module is not loaded": {
			scene{bus: []hostfs.PCIDevice{device("")}, texts: release, tool: diagnose.Failed},
			[]string{"kernel_module: the kernel module acme-old is installed and not loaded → sudo modprobe acme-old; where that is refused, \"sudo dmesg\" says why: most often the module was built for another kernel, or is not signed and Secure Boot is on"},
		},
		"a module that is needed besides is not loaded": {
			scene{bus: []hostfs.PCIDevice{device("acme")}, files: []string{"sys/module/acme", "dev/acmectl", "dev/acme0"}, tool: diagnose.Works},
			[]string{"kernel_module: the kernel module acme_uvm is not loaded → load uvm"},
		},
		"another driver holds the card": {
			scene{bus: []hostfs.PCIDevice{device("nouveau")}, tool: diagnose.Missing},
			[]string{"driver: the kernel driver nouveau holds the card, and cannot compute with it → blacklist"},
		},
		"the module is loaded and does not take the card": {
			scene{bus: []hostfs.PCIDevice{device("")}, files: well, tool: diagnose.Failed},
			[]string{"driver: the module acme is loaded and does not hold the cards → look for its complaint with \"sudo dmesg | grep -i acme\"; most often the card is newer than the driver"},
		},
		"nothing is known of the brand's module": {
			scene{bus: []hostfs.PCIDevice{device("")}, bare: true, tool: diagnose.Works},
			[]string{"driver: no kernel driver holds the cards → "},
		},
		"a device node is not there": {
			scene{bus: []hostfs.PCIDevice{device("acme")}, files: []string{"sys/module/acme", "sys/module/acme_uvm", "dev/acmectl"}, tool: diagnose.Works},
			[]string{"device_node: the device node /dev/acme[0-9]* is not there → make nodes"},
		},
		"a node may not be used": {
			scene{bus: []hostfs.PCIDevice{device("acme")}, files: well, denied: []string{"dev/acme0"}, tool: diagnose.Works},
			[]string{"permission: this user may not use /dev/acme0 → sudo usermod -a -G render,acme USER, and sign in anew; or run the Nomad agent, and this check, as root"},
		},
		"the tool is not installed": {
			scene{bus: []hostfs.PCIDevice{device("acme")}, files: well, tool: diagnose.Missing},
			[]string{"tool: no tool of the maker is installed: without it cards are known by their place only → install tool"},
		},
		"the tool is another maker's": {
			scene{bus: []hostfs.PCIDevice{device("acme")}, files: well, tool: diagnose.Foreign},
			[]string{"tool: no tool of the maker is installed: without it cards are known by their place only → install tool"},
		},
		"the tool hangs": {
			scene{bus: []hostfs.PCIDevice{device("acme")}, files: well, tool: diagnose.Hangs},
			[]string{"tool_hangs: acme-smi said so → run it by hand; where it hangs too, \"sudo dmesg\" tells of a card or driver that does not answer, and a restart of the machine helps"},
		},
		"the tool fails": {
			scene{bus: []hostfs.PCIDevice{device("acme")}, files: well, tool: diagnose.Failed},
			[]string{"tool_fails: acme-smi said so → run it by hand and read what it says; if it lists the cards there, send a bundle: heteroflow doctor -bundle FILE.tar.gz"},
		},
		"the tool complains of its library": {
			scene{bus: []hostfs.PCIDevice{device("acme")}, files: well, tool: diagnose.Failed, said: "Failed: version mismatch\n"},
			[]string{"library: two versions → restart"},
		},
		"the card does not answer": {
			scene{bus: []hostfs.PCIDevice{silent}, files: well, tool: diagnose.Works},
			[]string{"card_silent: the card 0000:01:00.0 does not answer on the PCI bus: it lost its power, or fell off the bus → shut the machine down and start it again; where that does not help, seat the card anew or have it replaced"},
		},
		"docker is there, the toolkit is not": {
			scene{bus: []hostfs.PCIDevice{device("acme")}, files: well, tool: diagnose.Works, looks: []string{"docker"}},
			[]string{"runtime: the container toolkit is not installed: containers get no libraries of the maker → install toolkit"},
		},
		"docker does not know the toolkit": {
			scene{bus: []hostfs.PCIDevice{device("acme")}, files: with(well, "run/docker.sock"), tool: diagnose.Works, looks: []string{"/opt/acme/runtime"}},
			[]string{"docker_runtime: Docker does not know the runtime \"acme\": it is not in /etc/docker/daemon.json → configure docker"},
		},
		"docker's settings cannot be read": {
			scene{bus: []hostfs.PCIDevice{device("acme")}, files: well, tool: diagnose.Works, looks: []string{"dockerd", "acme-ctk"}, texts: map[string]string{"etc/docker/daemon.json": "{broken"}},
			[]string{"docker_runtime: Docker does not know the runtime \"acme\": it is not in /etc/docker/daemon.json → configure docker"},
		},
		"docker knows the runtime":                 {scene{bus: []hostfs.PCIDevice{device("acme")}, files: well, tool: diagnose.Works, looks: []string{"docker"}, texts: docker}, nil},
		"docker has the devices by CDI":            {scene{bus: []hostfs.PCIDevice{device("acme")}, files: with(well, "etc/cdi/acme.yaml"), tool: diagnose.Works, looks: []string{"docker"}}, nil},
		"another program holds the card":           {scene{bus: []hostfs.PCIDevice{device("vfio-pci")}, tool: diagnose.Missing}, nil},
		"no card shows, and the tool is there":     {scene{tool: diagnose.Failed}, nil},
		"no card shows, and there is no tool":      {scene{tool: diagnose.Missing}, nil},
		"an old driver under another name is well": {scene{bus: []hostfs.PCIDevice{device("acme_old")}, files: with(well[1:], "sys/module/acme_old"), tool: diagnose.Works}, nil},
	}
	told := map[diagnose.Kind]bool{}
	for name, tc := range cases {
		b := tc.examine()
		var got []string
		for _, l := range b.Lacks {
			told[l.Kind] = true
			got = append(got, fmt.Sprintf("%s: %s → %s", l.Kind, l.What, l.Do))
			if l.Do == "" && !tc.bare {
				t.Errorf("%s: %s has no fix", name, l.Kind)
			}
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff(b, tc.examine()); diff != "" {
			t.Errorf("%s: the same machine gives another text:\n%s", name, diff)
		}
	}
	for _, kind := range []diagnose.Kind{
		diagnose.NoDriver, diagnose.NoModule, diagnose.NoNode, diagnose.NoPermission, diagnose.NoLibrary, diagnose.NoTool, diagnose.ToolHangs,
		diagnose.ToolFails, diagnose.NoRuntime, diagnose.NoDockerSetup, diagnose.CardSilent,
	} {
		if !told[kind] {
			t.Errorf("no case has the kind %s", kind)
		}
	}
}

func TestExamine_WhatIsThere(t *testing.T) {
	t.Parallel()
	b := scene{
		bus: []hostfs.PCIDevice{device("acme"), {Address: "0000:02:00.0", Vendor: "1234", Device: "0002", Driver: "vfio-pci", Answers: true}}, files: well, tool: diagnose.Works, sick: true,
		texts: map[string]string{"sys/module/acme/version": "5.1"},
	}.examine()
	want := diagnose.Brand{
		Vendor: "acme", Present: true, Cards: 1,
		Bus:     []diagnose.Function{{Address: card, ID: "1234:0001", Driver: "acme", Answers: true}, {Address: "0000:02:00.0", ID: "1234:0002", Driver: "vfio-pci", Answers: true}},
		Modules: []diagnose.Module{{Name: "acme", Loaded: true, Version: "5.1"}, {Name: "acme_uvm", Loaded: true}},
		Nodes:   []string{"/dev/acmectl", "/dev/acme0"},
		Paths: []diagnose.Path{
			{Name: "libacme", Kind: diagnose.Library, State: diagnose.NotTried},
			{Name: "acme-smi", Kind: diagnose.Tool, State: diagnose.Works, Detail: "said so"},
			{Name: "PCI bus and device nodes", Kind: diagnose.Kernel, State: diagnose.Works, Detail: "2 cards on the bus"},
		},
		Notes: []string{"1 of 2 cards are held by vfio-pci or its like for virtual machines, and are not offered"},
	}
	if diff := cmp.Diff(want, b); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if b := (scene{tool: diagnose.Works}).examine(); b.Present || len(b.Notes) != 1 {
		t.Errorf("%+v", b)
	}
	if p := diagnose.Examine(diagnose.Case{Files: hostfs.Replay(hostfs.NewSnapshot())}).Paths; p[0].State != diagnose.Failed {
		t.Errorf("%+v", p)
	}
}

func TestTrace(t *testing.T) {
	t.Parallel()
	status := 3
	tracer := diagnose.Trace(vendorcli.Replay(vendorcli.Recording{Calls: []vendorcli.Call{
		{Argv: []string{"t", "json"}, ExitCode: 3, Stdout: "banner\n{\"a\": 1}\n"},
		{Argv: []string{"t", "xml"}, ExitCode: 3, Stdout: "<?xml?><a/>"},
		{Argv: []string{"t", "text"}, ExitCode: 3, Stdout: "[1] is no JSON"},
		{Argv: []string{"t", "stderr"}, ExitCode: 3, Stderr: "bad"},
		{Argv: []string{"t", "none"}, ExitCode: 3},
		{Argv: []string{"t", "start"}, Failure: vendorcli.NotStarted, Why: "permission denied"},
		{Argv: []string{"t", "hang"}, Failure: vendorcli.TimeLimit},
	}}))
	for _, arg := range []string{"json", "xml", "text", "stderr", "none", "start", "hang", "not recorded"} {
		if arg == "hang" && tracer.Hung() {
			t.Error("it hangs before it does")
		}
		if _, err := tracer.Run(context.Background(), "t", arg); err != nil {
			t.Logf("%s: %v", arg, err)
		}
	}
	if _, err := tracer.Run(context.Background(), "absent"); err == nil {
		t.Error("an absent tool runs")
	}
	want := []diagnose.Call{
		{Args: "json", Form: "json", Status: &status},
		{Args: "xml", Form: "xml", Status: &status},
		{Args: "text", Form: "text", Status: &status},
		{Args: "stderr", Form: "text", Status: &status},
		{Args: "none", Form: "nothing", Status: &status},
		{Args: "start", Form: "nothing", Trouble: "cannot be started: permission denied"},
		{Args: "hang", Form: "nothing", Trouble: "no answer in time"},
		{Args: "not recorded", Form: "nothing", Trouble: "run t: the recording has no such call"},
	}
	if diff := cmp.Diff(want, tracer.Calls()); diff != "" || !tracer.Hung() || len(tracer.Said()) != 4 {
		t.Errorf("hung %t, said %q (-want +got):\n%s", tracer.Hung(), tracer.Said(), diff)
	}
}
