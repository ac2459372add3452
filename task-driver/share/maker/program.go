package maker

import (
	"fmt"
	"strings"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/task-driver/share"
)

// Programs is the folder of programs that a node's administrator supplies for makers who publish no command of their own.
// What such a program is asked is written in the package of its brand and in docs/shares.md; it is ours, not the maker's.
const Programs = "/usr/local/libexec/heteroflow"

// Program is the path of the program for a mode of a brand.
func Program(v accel.Vendor, mode accel.Mode) string {
	return Programs + "/" + string(v) + "-" + mode
}

// NeedProgram says that the program is missing, and why there has to be one. why is a sentence without its end.
func NeedProgram(tool share.Tool, program, why string) error {
	if _, err := tool.Look(program); err != nil {
		return fmt.Errorf("%s: put a program at %s that does what docs/shares.md asks of it, or ask for qos bronze (%w)", why, program, err)
	}
	return nil
}

// Table reads lines of exactly n words; other lines are told in the error, since half a list is none.
func Table(out string, n int) ([][]string, error) {
	var rows [][]string
	for line := range strings.Lines(out) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		if len(words) != n {
			return nil, fmt.Errorf("line %q has %d words and not %d", strings.TrimSpace(line), len(words), n)
		}
		rows = append(rows, words)
	}
	return rows, nil
}
