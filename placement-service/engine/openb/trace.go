package openb

import (
	"cmp"
	"compress/gzip"
	"encoding/csv"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/heteroflow/heteroflow/placement-service/engine/potential"
)

// Models are the numbers of card models by name.
type Models map[string]int

// number is the model's number; a new one gets the next.
func (m Models) number(name string) (int, error) {
	n, ok := m[name]
	if !ok {
		n = len(m)
		if n == potential.MaxModels {
			return 0, fmt.Errorf("more than %d card models", potential.MaxModels)
		}
		m[name] = n
	}
	return n, nil
}

// Load reads the node list and one pod list ("default", "cpu050", …) of a folder with compressed lists.
func Load(folder fs.FS, list string) (*Cluster, error) {
	c, models := &Cluster{}, Models{}
	err := open(folder, "openb_node_list_gpu_node.csv.gz", func(r io.Reader) (err error) {
		c.Nodes, err = Nodes(r, models)
		return err
	})
	if err != nil {
		return nil, err
	}
	err = open(folder, "openb_pod_list_"+list+".csv.gz", func(r io.Reader) (err error) {
		c.Pods, err = Pods(r, models)
		return err
	})
	return c, err
}

func open(folder fs.FS, name string, read func(io.Reader) error) error {
	f, err := folder.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	unpacked, err := gzip.NewReader(f)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if err := read(unpacked); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// Pod is one request of a pod list.
type Pod struct {
	Name  string
	Shape potential.Shape
}

// Nodes reads a node list, in the order of names.
func Nodes(r io.Reader, models Models) ([]potential.State, error) {
	type node struct {
		name  string
		state potential.State
	}
	var all []node
	err := rows(r, []string{"sn", "cpu_milli", "memory_mib", "gpu", "model"}, func(f []string) error {
		n, err := numbers(f[1:4])
		if err != nil {
			return err
		}
		model, err := models.number(f[4])
		if err != nil {
			return err
		}
		if n[2] > potential.MaxCards {
			return fmt.Errorf("%d cards on a node, more than %d", n[2], potential.MaxCards)
		}
		cards := make([]potential.Card, n[2])
		for i := range cards {
			cards[i] = potential.MakeCard(model, potential.Whole)
		}
		all = append(all, node{f[0], potential.MakeState(n[0], n[1], cards)})
		return nil
	})
	slices.SortFunc(all, func(a, b node) int { return cmp.Compare(a.name, b.name) })
	var states []potential.State
	for _, n := range all {
		states = append(states, n.state)
	}
	return states, err
}

// Pods reads a pod list, in the order of names.
func Pods(r io.Reader, models Models) ([]Pod, error) {
	var all []Pod
	err := rows(r, []string{"name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"}, func(f []string) error {
		n, err := numbers(f[1:5])
		if err != nil {
			return err
		}
		if n[2] > potential.MaxCards || n[3] > potential.Whole || n[2] > 0 && n[3] == 0 {
			return fmt.Errorf("%d cards with %d thousandths of each: not 0 to %d with 1 to %d", n[2], n[3], potential.MaxCards, potential.Whole)
		}
		if n[2] == 0 {
			n[3] = 0
		}
		p := Pod{f[0], potential.Shape{CPU: int32(n[0]), Memory: int32(n[1]), Cards: int16(n[2]), Milli: int16(n[3])}}
		if n[2] > 0 && len(f) > 5 && f[5] != "" {
			for name := range strings.SplitSeq(f[5], "|") {
				model, err := models.number(name)
				if err != nil {
					return err
				}
				p.Shape.Models |= 1 << model
			}
		}
		all = append(all, p)
		return nil
	})
	slices.SortFunc(all, func(a, b Pod) int { return cmp.Compare(a.Name, b.Name) })
	return all, err
}

// rows calls each with the fields of every row; the first row must begin with these columns.
func rows(r io.Reader, columns []string, each func([]string) error) error {
	in := csv.NewReader(r)
	head, err := in.Read()
	if err != nil {
		return fmt.Errorf("read the columns: %w", err)
	}
	if len(head) < len(columns) || !slices.Equal(head[:len(columns)], columns) {
		return fmt.Errorf("columns are %q, not %q", head, columns)
	}
	for {
		fields, err := in.Read()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := each(fields); err != nil {
			line, _ := in.FieldPos(0)
			return fmt.Errorf("line %d: %w", line, err)
		}
	}
}

func numbers(fields []string) ([]int, error) {
	out := make([]int, len(fields))
	for i, f := range fields {
		n, err := strconv.ParseInt(f, 10, 32)
		if err != nil || n < 0 {
			return nil, fmt.Errorf("%q is not a whole number from 0", f)
		}
		out[i] = int(n)
	}
	return out, nil
}
