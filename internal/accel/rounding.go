package accel

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A Rounding says what a share becomes when a mode makes it: brands give shares in steps, or in templates only. It is the
// same for a card as long as it lives, whatever runs on it.
//
// The text of AttrRounding has one rule for each mode:
//
//	rounding = rule *( ";" rule )
//	rule     = mode ":" item *( "," item )
//	item     = "memory=" MiB                        memory is given in multiples of it
//	         | "parts=" number                      the card's compute is given in so many equal parts
//	         | "max=" number                        shares on one card at once
//	         | name "=" MiB [ "/" parts ] [ "*" max ]   a template: its memory, its parts, how often it fits on one card
//
// such as "hami:memory=1,parts=100;mig:parts=7,1g.10gb=9984/1*7,2g.20gb=20096/2*3". A rule without memory and without
// templates takes memory as it is asked; one without parts says nothing of compute. A rule with templates gives nothing else.
type Rounding struct {
	Mode      Mode
	StepMiB   uint64     // 0 when there is no step
	Parts     int        // equal parts of a card's compute; 0 when it is not told
	Max       int        // shares on one card; 0 when it is not told
	Templates []Template // ordered by memory, parts and name; empty when shares are made in steps
}

// Template is one size in which a mode divides a card.
type Template struct {
	Name      string // as the maker's tool takes it
	MemoryMiB uint64 // at least 1
	Parts     int    // of Rounding.Parts; 0 when it is not told
	Max       int    // on one card; 0 when it is not told
}

// Share is what an ask becomes.
type Share struct {
	Template   string // empty when the mode has no templates
	MemoryMiB  uint64 // at least what was asked
	Parts      int    // of Rounding.Parts; 0 when nothing was asked and nothing is told
	ComputePct int    // what the parts are of the card, rounded down, at least what was asked; 0 as with Parts
}

// Round turns an ask for memory and percent of compute, 0 for no cap, into the smallest share that the mode gives. ok is
// false when it gives none as large: such an ask needs a whole card. cardMiB is the card's memory, 0 when it is not known.
func (r Rounding) Round(memoryMiB uint64, computePct int, cardMiB uint64) (s Share, ok bool) {
	if computePct < 0 || computePct > 100 || memoryMiB > maxMiB {
		return Share{}, false
	}
	parts := 0
	if computePct > 0 && r.Parts > 0 {
		parts = (computePct*r.Parts + 99) / 100
	}
	if len(r.Templates) > 0 {
		for _, t := range r.Templates {
			if t.MemoryMiB >= memoryMiB && (t.Parts == 0 || t.Parts >= parts) {
				return Share{Template: t.Name, MemoryMiB: t.MemoryMiB, Parts: t.Parts, ComputePct: r.percent(t.Parts)}, true
			}
		}
		return Share{}, false
	}
	s = Share{MemoryMiB: memoryMiB, Parts: parts, ComputePct: r.percent(parts)}
	if r.Parts == 0 {
		s.ComputePct = computePct
	}
	if r.StepMiB > 0 {
		s.MemoryMiB = (memoryMiB + r.StepMiB - 1) / r.StepMiB * r.StepMiB
	}
	return s, cardMiB == 0 || s.MemoryMiB <= cardMiB
}

func (r Rounding) percent(parts int) int {
	if r.Parts == 0 {
		return 0
	}
	return parts * 100 / r.Parts
}

// Limits of what is read: more than any card has.
const (
	maxMiB       = 1 << 30
	maxParts     = 1 << 16
	maxTemplates = 64
)

var (
	modeText     = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)
	templateText = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9._+-]{0,63})=(\d{1,10})(?:/(\d{1,5}))?(?:\*(\d{1,5}))?$`)
)

// FormatRounding writes rules in the form of AttrRounding, ordered by mode.
func FormatRounding(rules []Rounding) string {
	texts := make([]string, 0, len(rules))
	for _, r := range rules {
		var items []string
		for _, n := range []struct {
			key   string
			value uint64
		}{{"memory", r.StepMiB}, {"parts", uint64(r.Parts)}, {"max", uint64(r.Max)}} {
			if n.value > 0 {
				items = append(items, n.key+"="+strconv.FormatUint(n.value, 10))
			}
		}
		for _, t := range r.Templates {
			items = append(items, t.String())
		}
		if len(items) > 0 {
			texts = append(texts, r.Mode+":"+strings.Join(items, ","))
		}
	}
	slices.Sort(texts)
	return strings.Join(texts, ";")
}

// String is the template as an item of a rule.
func (t Template) String() string {
	text := t.Name + "=" + strconv.FormatUint(t.MemoryMiB, 10)
	if t.Parts > 0 {
		text += "/" + strconv.Itoa(t.Parts)
	}
	if t.Max > 0 {
		text += "*" + strconv.Itoa(t.Max)
	}
	return text
}

// ParseRounding reads what FormatRounding writes. A rule that is not known to this version is left out whole, since a part
// of it would round wrongly, and told in the error beside the others.
func ParseRounding(text string) ([]Rounding, error) {
	var rules []Rounding
	var problems []error
	for part := range strings.SplitSeq(text, ";") {
		if part == "" {
			continue
		}
		r, err := parseRule(part)
		switch {
		case err != nil:
			problems = append(problems, err)
		case slices.ContainsFunc(rules, func(o Rounding) bool { return o.Mode == r.Mode }):
			problems = append(problems, fmt.Errorf("mode %s has two rules", r.Mode))
		default:
			rules = append(rules, r)
		}
	}
	slices.SortFunc(rules, func(a, b Rounding) int { return cmp.Compare(a.Mode, b.Mode) })
	return rules, errors.Join(problems...)
}

func parseRule(text string) (Rounding, error) {
	mode, items, _ := strings.Cut(text, ":")
	r := Rounding{Mode: mode}
	if !modeText.MatchString(mode) || items == "" {
		return r, fmt.Errorf("%q is no rule: write mode:memory=MiB,parts=number or templates name=MiB/parts*max", text)
	}
	for item := range strings.SplitSeq(items, ",") {
		t, err := parseTemplate(item)
		if err != nil {
			return r, fmt.Errorf("rule of %s: %w", mode, err)
		}
		plain := t.Parts == 0 && t.Max == 0
		switch {
		case t.Name == "memory" && plain && r.StepMiB == 0:
			r.StepMiB = t.MemoryMiB
		case t.Name == "parts" && plain && r.Parts == 0 && t.MemoryMiB <= maxParts:
			r.Parts = int(t.MemoryMiB)
		case t.Name == "max" && plain && r.Max == 0 && t.MemoryMiB <= maxParts:
			r.Max = int(t.MemoryMiB)
		case slices.Contains([]string{"memory", "parts", "max"}, t.Name):
			return r, fmt.Errorf("rule of %s: %q is given twice or is no number of its kind", mode, item)
		default:
			r.Templates = append(r.Templates, t)
		}
	}
	return r, r.check()
}

func parseTemplate(item string) (Template, error) {
	m := templateText.FindStringSubmatch(item)
	if m == nil {
		return Template{}, fmt.Errorf("%q is no item: write for example 1g.10gb=9984/1*7", item)
	}
	numbers := make([]uint64, 3)
	for i, text := range m[2:5] {
		if text == "" {
			continue
		}
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil || n == 0 {
			return Template{}, fmt.Errorf("%q has the number %s, which is none of 1 and above", item, text)
		}
		numbers[i] = n
	}
	if numbers[0] > maxMiB || numbers[1] > maxParts || numbers[2] > maxParts {
		return Template{}, fmt.Errorf("%q is more than any card has", item)
	}
	return Template{Name: m[1], MemoryMiB: numbers[0], Parts: int(numbers[1]), Max: int(numbers[2])}, nil
}

// check brings the templates into their order and tells what no rule can be.
func (r *Rounding) check() error {
	SortTemplates(r.Templates)
	names := map[string]bool{}
	for _, t := range r.Templates {
		switch {
		case names[t.Name]:
			return fmt.Errorf("rule of %s: template %s is there twice", r.Mode, t.Name)
		case t.Parts > r.Parts:
			return fmt.Errorf("rule of %s: template %s has %d parts of %d", r.Mode, t.Name, t.Parts, r.Parts)
		}
		names[t.Name] = true
	}
	switch {
	case len(r.Templates) > maxTemplates:
		return fmt.Errorf("rule of %s: %d templates are more than any card has", r.Mode, len(r.Templates))
	case len(r.Templates) > 0 && r.StepMiB > 0:
		return fmt.Errorf("rule of %s: it has templates and steps of memory: write one of them", r.Mode)
	}
	return nil
}

// SortTemplates puts templates into the order in which Round tries them: smallest first.
func SortTemplates(list []Template) {
	slices.SortFunc(list, func(a, b Template) int {
		return cmp.Or(cmp.Compare(a.MemoryMiB, b.MemoryMiB), cmp.Compare(a.Parts, b.Parts), cmp.Compare(a.Name, b.Name))
	})
}
