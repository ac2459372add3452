package accel

import (
	"errors"
	"fmt"
	"path"
	"strings"
)

// Ask is what a task asks of accelerators: the accelerator block of a job, checked.
type Ask struct {
	Count      int      // cards, at least 1
	MemoryMiB  uint64   // per card; 0 asks for whole cards
	ComputePct int      // percent of each card's compute, 10–100; 0 is no cap
	QoS        QoS      // empty when it is to be derived
	Vendors    []Vendor // any when empty
	Models     []string // shell patterns against the model name, any when empty
}

// Block is the accelerator block as a user wrote it, before any check. The driver decodes it from its task
// config, the placement service from the job.
type Block struct {
	Count   int64    `codec:"count" json:"count"`
	Memory  string   `codec:"memory" json:"memory"`
	Compute int64    `codec:"compute" json:"compute"`
	QoS     string   `codec:"qos" json:"qos"`
	Vendor  []string `codec:"vendor" json:"vendor"`
	Model   []string `codec:"model" json:"model"`
}

// Whole reports whether the ask is for whole cards.
func (a Ask) Whole() bool { return a.MemoryMiB == 0 }

// Accepts reports whether a card of this brand and model is one the ask names.
func (a Ask) Accepts(v Vendor, model string) bool {
	return a.AcceptsVendor(v) && a.AcceptsModel(model)
}

// AcceptsVendor reports whether the ask names the brand, or none.
func (a Ask) AcceptsVendor(v Vendor) bool {
	if len(a.Vendors) == 0 {
		return true
	}
	for _, want := range a.Vendors {
		if want == v {
			return true
		}
	}
	return false
}

// AcceptsModel reports whether one of the ask's patterns matches the model, without regard to case.
func (a Ask) AcceptsModel(model string) bool {
	if len(a.Models) == 0 {
		return true
	}
	for _, pattern := range a.Models {
		if ok, err := path.Match(strings.ToLower(pattern), strings.ToLower(model)); err == nil && ok {
			return true
		}
	}
	return false
}

// String says the ask in the words of a reason: "2 cards with 20 GiB each of nvidia".
func (a Ask) String() string {
	var b strings.Builder
	noun := "card"
	if a.Count != 1 {
		noun = "cards"
	}
	if a.Whole() {
		fmt.Fprintf(&b, "%d whole %s", a.Count, noun)
	} else {
		fmt.Fprintf(&b, "%d %s with %s", a.Count, noun, FormatMiB(a.MemoryMiB))
		if a.Count != 1 {
			b.WriteString(" each")
		}
	}
	if a.ComputePct != 0 {
		fmt.Fprintf(&b, " and %d %% compute", a.ComputePct)
	}
	if a.QoS != "" {
		fmt.Fprintf(&b, ", qos %s", a.QoS)
	}
	if len(a.Vendors) > 0 {
		names := make([]string, len(a.Vendors))
		for i, v := range a.Vendors {
			names[i] = string(v)
		}
		fmt.Fprintf(&b, ", brand %s", strings.Join(names, " or "))
	}
	if len(a.Models) > 0 {
		fmt.Fprintf(&b, ", model %s", strings.Join(a.Models, " or "))
	}
	return b.String()
}

// FieldError is one thing wrong with a block: the field and a sentence that says what to write instead.
type FieldError struct {
	Field   string // name of the field in the block
	Problem string
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Problem }

// Ask checks the block and reads it. An error joins one FieldError for each field that is wrong.
func (b Block) Ask() (Ask, error) {
	var problems []error
	bad := func(field, format string, args ...any) {
		problems = append(problems, &FieldError{Field: field, Problem: fmt.Sprintf(format, args...)})
	}
	ask := Ask{Count: int(b.Count), ComputePct: int(b.Compute)}
	switch {
	case b.Count == 0:
		ask.Count = 1
	case b.Count < 0:
		bad("count", "%d is negative: write how many cards the task needs, 1 or more", b.Count)
	case b.Count > 1024:
		bad("count", "%d is more cards than one node can have: split the work over several allocations", b.Count)
	}
	if b.Memory != "" {
		mib, err := ParseMemoryMiB(b.Memory)
		if err != nil {
			bad("memory", "%s", err)
		}
		ask.MemoryMiB = mib
	}
	if b.Compute != 0 && (b.Compute < 10 || b.Compute > 100) {
		bad("compute", "%d is outside 10–100: write the percent of one card's compute, or leave it out for no cap", b.Compute)
	}
	if b.Compute != 0 && b.Memory == "" {
		bad("compute", `a cap needs a share: write memory too, for example memory = "20GiB", or leave compute out for whole cards`)
	}
	var err error
	if ask.QoS, err = ParseQoS(b.QoS); err != nil {
		bad("qos", "%s", err)
	}
	for _, name := range b.Vendor {
		v, err := ParseVendor(name)
		if err != nil {
			bad("vendor", "%s", err)
			continue
		}
		ask.Vendors = append(ask.Vendors, v)
	}
	for _, pattern := range b.Model {
		if _, err := path.Match(pattern, ""); err != nil || strings.TrimSpace(pattern) == "" {
			bad("model", `%q is not a pattern: write a model name, with * for any text, for example "A100*"`, pattern)
			continue
		}
		ask.Models = append(ask.Models, pattern)
	}
	if len(problems) > 0 {
		return Ask{}, errors.Join(problems...)
	}
	return ask, nil
}

// Units is the number of instances of unitMiB each that hold the ask's memory on one card.
func (a Ask) Units(unitMiB uint64) int {
	if unitMiB == 0 {
		return 0
	}
	return int((a.MemoryMiB + unitMiB - 1) / unitMiB)
}
