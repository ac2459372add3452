package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/device-plugins/device"
	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/share/ascend"
)

// npuSMI is npu-smi of two chips, which keeps the virtual NPUs that are made in a file. Its texts are those of the recorded
// outputs; the table of templates has the columns of the written one.
const npuSMI = `#!/bin/sh
state=%q
case "$*" in
info) exec cat %q ;;
"info -t vnpu-mode") echo "        vnpu-mode                      : docker" ;;
"info -t vnpu-cfg-recover") echo "        vnpu config recover            : Disable" ;;
"info -t template-info"*)
	echo "        |Name                AICORE    Memory    AICPU     VPC            VENC           JPEGD     |"
	echo "        |vir06_1c_16g        6         16        1         3              0              4         |"
	echo "        |vir12_3c_32g        12        32        3         6              0              8         |" ;;
"info -t info-vnpu"*)
	total=$(grep -c "^$5 " "$state")
	echo "     AICORE    Memory    AICPU"
	echo "                GB"
	echo "     $((24 - 6 * total))/24      $((64 - 16 * total))/64     7/7"
	echo "    Total number of vnpu: $total"
	echo "    Vnpu ID  |  Vgroup ID     |  Container ID  |  Status  |  Template Name"
	grep "^$5 " "$state" | while read -r _ id template; do echo "    $id      |  0             |  000000000000  |  0       |  $template"; done ;;
"set -t create-vnpu"*)
	total=$(grep -c "^$5 " "$state")
	echo "$5 $((100 + 16 * $5 + total)) $9" >>"$state"
	printf '        Status                         : OK\n        Message                        : Create vnpu success\n' ;;
"set -t destroy-vnpu"*)
	grep -v "^$5 $9 " "$state" >"$state.new"
	mv "$state.new" "$state"
	printf '        Status                         : OK\n        Message                        : Destroy vnpu %%s success\n' "$9" ;;
*) exit 1 ;;
esac
`

// The driver's own ledger and backend make virtual NPUs by the tool that the plugin reads: those are never offered, and those
// that the administrator makes are.
func TestOnce_VirtualNPUsOfTheDriver(t *testing.T) {
	plugin, state := binary(t), t.TempDir()
	tools, vnpus := t.TempDir(), filepath.Join(t.TempDir(), "vnpus")
	script := fmt.Sprintf(npuSMI, vnpus, absolute(t, "../../device-plugins/ascend/testdata/info-910b2c-23.0.3.txt"))
	for path, body := range map[string]string{filepath.Join(tools, "npu-smi"): script, vnpus: ""} {
		if err := os.WriteFile(path, []byte(body), 0o755); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", tools+string(os.PathListSeparator)+os.Getenv("PATH"))
	root := t.TempDir()
	look := func() []device.FoundCard {
		t.Helper()
		cmd := exec.Command(plugin, "-once", "-root", root, "-state-dir", state, "-nvidia-smi", "no-such-nvidia-smi")
		var errs bytes.Buffer
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v\n%s", err, errs.String())
		}
		var found device.Found
		if err := json.Unmarshal(out, &found); err != nil {
			t.Fatal(err)
		}
		return found.Cards
	}
	first := look()
	if len(first) != 2 || first[0].Form != accel.Whole {
		t.Fatalf("found are %+v", first)
	}
	book, err := json.Marshal(map[string]accel.Form{first[0].UUID: accel.Shared, first[1].UUID: accel.Shared})
	if err == nil {
		err = os.WriteFile(filepath.Join(state, "forms.json"), book, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	slices0 := look()

	host := share.Host{Tool: share.Exec{}, Root: root, Dir: filepath.Join(state, "shares")}
	driver := share.NewManager(share.Options{
		Registry: share.NewRegistry(ascend.NewVNPUs(host)), Dir: host.Dir, Alive: func(string) bool { return true },
	})
	ask := share.Ask{
		ID: share.NewID("task", accel.Ascend, first[0].UUID), TaskID: "task", Vendor: accel.Ascend, Form: accel.Shared, MemoryMiB: 16384, Of: 1, Container: true,
		Card: grant.Card{UUID: first[0].UUID, Model: first[0].Model, Index: 0, PCI: first[0].PCIAddress, MemoryMiB: 65536, Nodes: []string{"/dev/davinci0"}},
	}
	if _, err := driver.Prepare(t.Context(), []share.Ask{ask}, func(string) {}); err != nil {
		t.Fatal(err)
	}
	if body, err := os.ReadFile(vnpus); err != nil || len(body) == 0 {
		t.Fatalf("no virtual NPU was made: %v", err)
	}
	if diff := cmp.Diff(slices0, look()); diff != "" {
		t.Errorf("the share changed what is offered (-before +after):\n%s", diff)
	}
	admin := func(args ...string) {
		t.Helper()
		if out, err := exec.Command(filepath.Join(tools, "npu-smi"), args...).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	forms := func() []accel.Form {
		var out []accel.Form
		for _, c := range look() {
			out = append(out, c.Form)
		}
		slices.Sort(out)
		return out
	}
	admin("set", "-t", "create-vnpu", "-i", "1", "-c", "0", "-f", "vir12_3c_32g")
	if diff := cmp.Diff([]accel.Form{accel.Divided, accel.Partition, accel.Shared}, forms()); diff != "" {
		t.Errorf("the administrator's beside ours (-want +got):\n%s", diff)
	}
	admin("set", "-t", "destroy-vnpu", "-i", "1", "-c", "0", "-v", "116")
	if err := driver.Release(t.Context(), "task"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(slices0, look()); diff != "" {
		t.Errorf("after the task (-before +after):\n%s", diff)
	}
	admin("set", "-t", "create-vnpu", "-i", "0", "-c", "0", "-f", "vir06_1c_16g")
	if diff := cmp.Diff([]accel.Form{accel.Divided, accel.Partition, accel.Shared}, forms()); diff != "" {
		t.Errorf("the administrator's (-want +got):\n%s", diff)
	}
}
