package command

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"
)

// diffWriter prints the difference between two versions of a job, as `nomad job plan` does.
type diffWriter struct {
	strings.Builder
	verbose bool
}

func diffText(diff *api.JobDiff, verbose bool) string {
	w := &diffWriter{verbose: verbose}
	w.line(0, diff.Type, fmt.Sprintf("Job: %q", diff.ID))
	if diff.Type == "Edited" || verbose {
		w.content(0, diff.Fields, diff.Objects)
	}
	for _, group := range diff.TaskGroups {
		w.group(group, diff.Type)
	}
	return w.String()
}

func (w *diffWriter) group(group *api.TaskGroupDiff, jobType string) {
	updates := make([]string, 0, len(group.Updates))
	for _, kind := range slices.Sorted(maps.Keys(group.Updates)) {
		updates = append(updates, fmt.Sprintf("%d %s", group.Updates[kind], kind))
	}
	title := fmt.Sprintf("Task Group: %q", group.Name)
	if len(updates) > 0 {
		title += " (" + strings.Join(updates, ", ") + ")"
	}
	w.line(0, group.Type, title)
	if group.Type == "Edited" || w.verbose {
		w.content(1, group.Fields, group.Objects)
	}
	for _, task := range group.Tasks {
		w.line(1, task.Type, fmt.Sprintf("Task: %q", task.Name)+notes(task.Annotations))
		if (task.Type == "Edited" && group.Type == "Edited") || w.verbose {
			w.content(2, task.Fields, task.Objects)
		}
	}
	if jobType != "None" {
		w.WriteString("\n")
	}
}

func (w *diffWriter) content(depth int, fields []*api.FieldDiff, objects []*api.ObjectDiff) {
	width := 0
	for _, f := range fields {
		width = max(width, len(f.Name)+1)
	}
	for _, f := range fields {
		w.line(depth, f.Type, fmt.Sprintf("%-*s %s", width, f.Name+":", values(f))+notes(f.Annotations))
	}
	for _, o := range objects {
		w.line(depth, o.Type, o.Name+" {")
		w.content(depth+1, o.Fields, o.Objects)
		w.line(depth, "None", "}")
	}
}

func values(f *api.FieldDiff) string {
	switch f.Type {
	case "Added":
		return fmt.Sprintf("%q", f.New)
	case "Deleted":
		return fmt.Sprintf("%q", f.Old)
	case "Edited":
		return fmt.Sprintf("%q => %q", f.Old, f.New)
	}
	return fmt.Sprintf("%q", cmp.Or(f.New, f.Old))
}

func (w *diffWriter) line(depth int, kind, text string) {
	mark := map[string]string{"Added": "+", "Deleted": "-", "Edited": "+/-"}[kind]
	fmt.Fprintf(w, "%s%-3s %s\n", strings.Repeat("  ", depth), mark, text)
}

func notes(annotations []string) string {
	if len(annotations) == 0 {
		return ""
	}
	return " (" + strings.Join(annotations, ", ") + ")"
}
