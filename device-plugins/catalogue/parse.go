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

// file holds the products, one a line. In a cell, entries are separated by semicolons, performances by blanks. A template is
// kind:name, then as far as it is told *max, =MiB and /cores.
//
//go:embed products.csv
var file string

var columns = []string{"vendor", "model", "arch", "memory_mib", "link", "names", "pci", "modes", "templates", "tflops", "source"}

// parse reads a file. The error joins everything that is wrong with it, by line.
func parse(text string) ([]Product, error) {
	rows := csv.NewReader(strings.NewReader(text))
	head, err := rows.Read()
	if err != nil {
		return nil, fmt.Errorf("read products: %w", err)
	}
	if !slices.Equal(head, columns) {
		return nil, fmt.Errorf("the first line is not %s", strings.Join(columns, ","))
	}
	var products []Product
	var problems []error
	for {
		cells, err := rows.Read()
		if errors.Is(err, io.EOF) {
			return products, errors.Join(problems...)
		}
		if err != nil {
			return nil, fmt.Errorf("read products: %w", err)
		}
		p, err := product(cells)
		if err != nil {
			line, _ := rows.FieldPos(0)
			problems = append(problems, fmt.Errorf("line %d: %w", line, err))
		}
		products = append(products, p)
	}
}

func product(cells []string) (Product, error) {
	p := Product{
		Model: cells[1], Arch: cells[2], Link: accel.LinkKind(cells[4]), Names: list(cells[5]), PCI: list(cells[6]), Modes: list(cells[7]), Sources: list(cells[10]),
	}
	var problems []error
	var err error
	if p.Vendor, err = accel.ParseVendor(cells[0]); err != nil {
		problems = append(problems, err)
	}
	if p.MemoryMiB, err = mib(cells[3]); err != nil {
		problems = append(problems, err)
	}
	for _, text := range list(cells[8]) {
		t, err := template(text)
		if err != nil {
			problems = append(problems, err)
		}
		p.Templates = append(p.Templates, t)
	}
	for _, text := range strings.Fields(cells[9]) {
		precision, number, _ := strings.Cut(text, "=")
		n, err := strconv.ParseFloat(number, 64)
		if err != nil {
			problems = append(problems, fmt.Errorf("performance %q: %w", text, err))
			continue
		}
		if p.TFLOPS == nil {
			p.TFLOPS = map[string]float64{}
		}
		p.TFLOPS[precision] = n
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
