package command

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// plugin stands in for the device plugin: it prints a file, or does what a script says.
func plugin(t *testing.T, script string) string {
	t.Helper()
	dir := t.TempDir()
	syscall.ForkLock.RLock() // what another test starts meanwhile would hold the script open, and it could not be run
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(filepath.Join(dir, "heteroflow-device"), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

const (
	diagnosed = `{"version":"1","sources":[{"name":"nvidia","vendor":"nvidia","cards":2},{"name":"ascend","vendor":"ascend","cards":0,"error":"npu-smi does not answer"}],
"cards":[{"vendor":"nvidia","model":"A40","uuid":"a","healthy":true},{"vendor":"nvidia","model":"A40","uuid":"b","healthy":false,"reason":"Xid 79"}],
"brands":[
 {"vendor":"nvidia","present":true,"cards":2,"usable":1,"bus":[{"address":"0000:01:00.0","id":"10de:2235","driver":"nvidia","answers":true},{"address":"0000:02:00.0","id":"10de:2235","driver":"nvidia","answers":false}],
  "modules":[{"name":"nvidia","loaded":true,"version":"550.54"},{"name":"nvidia_uvm","loaded":false}],"nodes":["/dev/nvidiactl"],
  "paths":[{"name":"NVML","kind":"library","state":"missing","detail":"not installed"},{"name":"nvidia-smi","kind":"tool","state":"works","detail":"lists 2 cards","calls":[{"args":"-q -x","form":"xml","status":0},{"args":"","form":"text","status":0}]}],
  "lacks":[{"kind":"card_silent","what":"the card 0000:02:00.0 does not answer","do":"restart"},{"kind":"docker_runtime","what":"Docker does not know it","do":"configure","see":"https://maker.example/"}],
  "notes":["1 of 2 cards are held by vfio-pci"]},
 {"vendor":"ascend","present":true,"cards":0,"usable":0,"bus":[{"address":"0000:c1:00.0","id":"19e5:d802","answers":true}],
  "paths":[{"name":"npu-smi","kind":"tool","state":"hangs","detail":"does not answer after 4 s"},{"name":"/usr/local/bin/npu-smi","kind":"tool","state":"not_tried","detail":"no time was left"},{"name":"/usr/local/sbin/npu-smi","kind":"tool","state":"not_tried","detail":"no time was left"}],
  "lacks":[{"kind":"driver","what":"the driver is not installed","do":"install it"}]},
 {"vendor":"amd","present":false,"cards":0,"usable":0,"paths":[{"name":"amd-smi","kind":"tool","state":"not_tried","detail":"no card shows"}]}],
"unclaimed":[{"address":"0000:09:00.0","id":"1ded:6001","answers":true}],
"bundle":{"file":"node.tar.gz","format":1,"made":"2026-01-02T03:04:05Z","version":"1","system":"linux/amd64","masked":{"UUIDs":2},"library":"NVML cannot be played.","differs":["nvidia"]}}`
	cpuOnly = `{"version":"1","sources":[],"cards":[],"brands":[{"vendor":"nvidia","present":false},{"vendor":"amd","present":false}]}`
)

func prints(t *testing.T, text string) string {
	t.Helper()
	return plugin(t, "cat '"+write(t, "answer", text)+"'\n")
}

func TestDoctor_Cards(t *testing.T) {
	t.Parallel()
	dir := prints(t, diagnosed)
	golden(t, "doctor_replay", call(t, nil, "doctor", "-replay", "node.tar.gz", "-bin-dir", dir))
	golden(t, "doctor_replay_verbose", call(t, nil, "doctor", "-replay", "node.tar.gz", "-verbose", "-bin-dir", dir))
	golden(t, "doctor_replay_none", call(t, nil, "doctor", "-replay", "node.tar.gz", "-bin-dir", prints(t, cpuOnly)))
}

// What a stranger's bundle says must not be obeyed by the terminal of who reads it.
func TestDoctor_NothingForTheTerminal(t *testing.T) {
	t.Parallel()
	hostile := strings.NewReplacer("Xid 79", `\u001b]0;x\u0007\u001b[2J\u009b31m`, "A40", `A\u001b[31m40`, "restart", `\u001b[8mrestart`).Replace(diagnosed)
	for _, flags := range [][]string{nil, {"-verbose"}} {
		said := call(t, nil, append([]string{"doctor", "-replay", "node.tar.gz", "-bin-dir", prints(t, hostile)}, flags...)...)
		if strings.ContainsAny(said.out+said.errors, "\x1b\x07\u009b") {
			t.Errorf("%q", said.out+said.errors)
		}
	}
}

// What the plugin is asked for, and what is said when it cannot answer.
func TestDoctor_CardsOfThePlugin(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ script, want string }{
		"it is refused":         {"echo 'b.tar.gz: the bundle is refused: it has no bundle.json' >&2; exit 1\n", "fail  cards here  cannot be looked for: b.tar.gz: the bundle is refused"},
		"it says nothing":       {"exit 3\n", "fail  cards here  cannot be looked for: exit status 3\n"},
		"it is of another kind": {"echo hello\n", "use one version of both programs"},
		"it is asked to replay": {"echo \"$*\" >&2; exit 1\n", "-diagnose -replay b.tar.gz"},
	} {
		if r := call(t, nil, "doctor", "-replay", "b.tar.gz", "-bin-dir", plugin(t, c.script)); r.code != 2 || !strings.Contains(r.out, c.want) {
			t.Errorf("%s: %+v", name, r)
		}
	}
	asked := plugin(t, "echo \"$*\" >&2; exit 1\n")
	if r := call(t, nil, "doctor", "-bundle", "b.tar.gz", "-bin-dir", asked, "-state-dir", "/nowhere"); !strings.Contains(r.out, "-diagnose -state-dir /nowhere -bundle b.tar.gz") {
		t.Errorf("%+v", r)
	}
	kept := write(t, "b.tar.gz", "a bundle of yesterday")
	if r := call(t, nil, "doctor", "-bundle", kept, "-bin-dir", asked); r.code != 1 || r.out != "" || !strings.Contains(r.errors, kept+" is there already: name another file") {
		t.Errorf("%+v", r)
	}
	if r := call(t, nil, "doctor", "-bundle", "b", "-replay", "b"); r.code != 1 || !strings.Contains(r.errors, "write one of them") {
		t.Errorf("%+v", r)
	}
}

func TestStateFinding(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		trouble, status string
		uid             int
	}{
		"another user may":  {"access /var/lib/heteroflow: permission denied", statusOK, 1000},
		"root may not":      {"access /var/lib/heteroflow: permission denied", statusFail, 0},
		"nobody may":        {"access /var/lib/heteroflow: read-only file system", statusFail, 1000},
		"there are no uids": {"access /var/lib/heteroflow: permission denied", statusFail, -1},
	} {
		f := stateFinding(c.trouble, c.uid)
		if f.Status != c.status || !strings.Contains(f.Detail, c.trouble) {
			t.Errorf("%s: %+v", name, f)
		}
	}
	state := `{"version":"1","cards":[{"vendor":"nvidia","model":"A40","healthy":true}],"state_trouble":"write in /x: not a directory"}`
	if r := call(t, nil, "doctor", "-replay", "x", "-bin-dir", prints(t, state)); !strings.Contains(r.out, "cannot be written: write in /x: not a directory") || r.code != 2 {
		t.Errorf("%+v", r)
	}
}

func TestDoctor_PluginThatHangs(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	program := filepath.Join(plugin(t, "exec sleep 600\n"), "heteroflow-device")
	if got := checkCards(ctx, program, nil, false); len(got) != 1 || got[0].Status != statusFail || !strings.Contains(got[0].Detail, "does not answer after") {
		t.Errorf("%+v", got)
	}
}
