package ascend

import (
	"regexp"
	"strings"

	"github.com/heteroflow/heteroflow/device-plugins/toolout"
)

// Templates is what `npu-smi info -t info-vnpu` says of one chip.
type Templates struct {
	// Free and Total are how much of each kind is left and there: "AICORE", "Memory" (in GB), "VENC" and so on. A kind
	// of which the tool cannot tell is absent.
	Free, Total map[string]int
	Instances   []VNPU
}

// VNPU is one existing virtual NPU.
type VNPU struct {
	ID, Group int
	Container string // empty when none uses it
	Status    string
	Template  string
}

// noContainer is printed where no container uses a virtual NPU.
const noContainer = "000000000000"

var wide = regexp.MustCompile(`\s+`)

// ParseVNPU reads what the tool says of the virtual NPUs of one chip.
func ParseVNPU(out string) Templates {
	t := Templates{Free: map[string]int{}, Total: map[string]int{}}
	var kinds []string
	listing := false
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(strings.TrimRight(strings.TrimSpace(line), "|"))
		switch {
		case strings.HasPrefix(line, "AICORE"):
			kinds = wide.Split(line, -1)
		case strings.HasPrefix(line, "Vnpu ID"):
			listing = true
		case listing:
			t.instance(strings.Split(line, "|"))
		case kinds != nil && strings.Contains(line, "/"):
			t.amounts(kinds, toolout.Values(line))
		}
	}
	return t
}

func (t *Templates) amounts(kinds, values []string) {
	if len(values) != len(kinds) {
		return
	}
	for i, kind := range kinds {
		free, total := toolout.Usage(values[i])
		if f, all := toolout.Whole(free), toolout.Whole(total); f != nil && all != nil {
			t.Free[kind], t.Total[kind] = *f, *all
		}
	}
}

func (t *Templates) instance(cells []string) {
	if len(cells) != 5 {
		return
	}
	for i := range cells {
		cells[i] = strings.TrimSpace(cells[i])
	}
	id, group := toolout.Whole(cells[0]), toolout.Whole(cells[1])
	if id == nil || group == nil {
		return
	}
	v := VNPU{ID: *id, Group: *group, Container: cells[2], Status: cells[3], Template: cells[4]}
	if v.Container == noContainer {
		v.Container = ""
	}
	t.Instances = append(t.Instances, v)
}

// ParseSet reads the answer to a change. It never names a virtual NPU that was made: list them again to learn it.
func ParseSet(out string) (ok bool, message string) {
	for _, p := range toolout.Pairs(out) {
		switch p.Key {
		case "Status":
			ok = p.Value == "OK"
		case "Message":
			message = p.Value
		}
	}
	return ok, message
}
