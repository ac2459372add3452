package catalogue

import (
	_ "embed"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// file holds the products, one a line. In a cell, entries are separated by semicolons, performances by blanks. A link is
// kind, then as far as it is told :generation and =GB/s. A template is kind:name, then as far as it is told *max, =MiB and
// /cores. A source is @key of sources.csv, or a note.
//
//go:embed products.csv
var file string

var columns = []string{"vendor", "model", "arch", "memory_mib", "link", "names", "pci", "modes", "templates", "tflops", "source"}

// parse reads the products, whose sources have their keys in the second file. The error joins everything that is wrong, by
// line.
func parse(text, sourcesText string) ([]Product, error) {
	sources, err := parseSources(sourcesText)
	if err != nil {
		return nil, err
	}
	var products []Product
	seen := known{}
	err = eachRow(text, "products", columns, func(cells []string) error {
		p, err := product(cells, sources)
		products = append(products, p)
		return errors.Join(err, check(p), seen.add(p))
	})
	return products, err
}

// eachRow calls for every line behind the first, and joins what is wrong, by line.
func eachRow(text, what string, columns []string, do func([]string) error) error {
	rows := csv.NewReader(strings.NewReader(text))
	head, err := rows.Read()
	if err != nil {
		return fmt.Errorf("read %s: %w", what, err)
	}
	if !slices.Equal(head, columns) {
		return fmt.Errorf("the first line of the %s is not %s", what, strings.Join(columns, ","))
	}
	var problems []error
	for {
		cells, err := rows.Read()
		if errors.Is(err, io.EOF) {
			return errors.Join(problems...)
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", what, err)
		}
		if err := do(cells); err != nil {
			line, _ := rows.FieldPos(0)
			problems = append(problems, fmt.Errorf("%s, line %d: %w", what, line, err))
		}
	}
}

func product(cells []string, sources map[string]string) (Product, error) {
	p := Product{Model: cells[1], Arch: cells[2], Names: list(cells[5]), PCI: list(cells[6]), Modes: list(cells[7])}
	var problems []error
	var err error
	if p.Vendor, err = accel.ParseVendor(cells[0]); err != nil {
		problems = append(problems, err)
	}
	if p.MemoryMiB, err = mib(cells[3]); err != nil {
		problems = append(problems, err)
	}
	if p.Link, p.LinkGen, p.LinkGBps, err = link(cells[4]); err != nil {
		problems = append(problems, err)
	}
	for _, text := range list(cells[8]) {
		t, err := template(text)
		if err != nil {
			problems = append(problems, err)
		}
		p.Templates = append(p.Templates, t)
	}
	if p.TFLOPS, err = peak(cells[9]); err != nil {
		problems = append(problems, err)
	}
	for _, one := range list(cells[10]) {
		if key, ok := strings.CutPrefix(one, "@"); ok {
			if one = sources[key]; one == "" {
				problems = append(problems, fmt.Errorf("source %q is not in sources.csv", key))
				continue
			}
		}
		p.Sources = append(p.Sources, one)
	}
	if len(p.Sources) == 0 {
		problems = append(problems, fmt.Errorf("%s has no source", p.Model))
	}
	return p, errors.Join(problems...)
}

// list splits a cell; an empty one has no entries.
func list(cell string) []string {
	var out []string
	for one := range strings.SplitSeq(cell, ";") {
		if one = strings.TrimSpace(one); one != "" {
			out = append(out, one)
		}
	}
	return out
}

// mib reads a size in MiB; nil when it is not told.
func mib(text string) (*uint64, error) {
	if text == "" {
		return nil, nil
	}
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("memory %q: %w", text, err)
	}
	return &n, nil
}

var linkText = regexp.MustCompile(`^([a-z]+)(?::([1-9]))?(?:=(\d{1,4}(?:\.\d)?))?$`)

func link(text string) (kind accel.LinkKind, generation int, gbps float64, err error) {
	if text == "" {
		return "", 0, 0, nil
	}
	m := linkText.FindStringSubmatch(text)
	if m == nil {
		return "", 0, 0, fmt.Errorf("link %q is not kind:generation=GB/s", text)
	}
	if m[2] != "" {
		generation = int(m[2][0] - '0')
	}
	if m[3] != "" {
		gbps, err = strconv.ParseFloat(m[3], 64)
	}
	return accel.LinkKind(m[1]), generation, gbps, err
}

// A plain number, such that no infinity, exponent or thousands' separator gets in.
var peakText = regexp.MustCompile(`^([a-z0-9]+)=(\d{1,4}(?:\.\d{1,3})?)$`)

func peak(text string) (Peak, error) {
	var out Peak
	var problems []error
	for one := range strings.FieldsSeq(text) {
		m := peakText.FindStringSubmatch(one)
		if m == nil {
			problems = append(problems, fmt.Errorf("performance %q is not precision=TFLOPS", one))
			continue
		}
		if _, twice := out[m[1]]; twice {
			problems = append(problems, fmt.Errorf("performance %q comes twice", m[1]))
		}
		n, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			problems = append(problems, fmt.Errorf("performance %q: %w", one, err))
		}
		if out == nil {
			out = Peak{}
		}
		out[m[1]] = n
	}
	return out, errors.Join(problems...)
}

var templateText = regexp.MustCompile(`^([a-z]+):([^*=\s]+?)(?:\*(\d{1,3}))?(?:=(\d{1,7})(?:/(\d{1,3}))?)?$`)

func template(text string) (Template, error) {
	m := templateText.FindStringSubmatch(text)
	if m == nil {
		return Template{}, fmt.Errorf("template %q is not kind:name*max=MiB/cores", text)
	}
	t := Template{Kind: m[1], Name: m[2]}
	for i, to := range map[int]*int{3: &t.Max, 5: &t.Cores} {
		if m[i] == "" {
			continue
		}
		n, err := strconv.Atoi(m[i])
		if err != nil {
			return t, fmt.Errorf("template %q: %w", text, err)
		}
		*to = n
	}
	var err error
	t.MemoryMiB, err = mib(m[4])
	return t, err
}
