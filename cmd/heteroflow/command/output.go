package command

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strings"
	"text/tabwriter"
	"text/template"
	"time"
	"unicode"
	"unicode/utf8"
)

// output is the choice of how an answer is printed: for people, as JSON or by a Go template.
type output struct {
	json     *bool
	template *string
	verbose  *bool
}

// withOutput adds -json, -t and -verbose.
func (c *command) withOutput() *output {
	return &output{
		json:     c.flags.Bool("json", false, "print the answer of the API as JSON"),
		template: c.flags.String("t", "", "print the answer by this Go `template`"),
		verbose:  c.flags.Bool("verbose", false, "print ids in full, and more"),
	}
}

// machine reports whether the answer is for a program.
func (o *output) machine() bool { return *o.json || *o.template != "" }

// id shortens an id as Nomad does, unless all of it is wanted.
func (o *output) id(id string) string {
	const short = 8
	if *o.verbose || len(id) <= short {
		return id
	}
	return id[:short]
}

// print writes an answer. Raw is the body as the API sent it, or nil to encode the answer itself; people is called
// for the form for people.
func (c *command) print(o *output, answer any, raw []byte, people func() error) error {
	switch {
	case *o.json && *o.template != "":
		return &usageError{"-json and -t are two ways to print one answer: write one of them"}
	case *o.json:
		return c.printJSON(answer, raw)
	case *o.template != "":
		return c.printTemplate(*o.template, answer)
	}
	return people()
}

func (c *command) printJSON(answer any, raw []byte) error {
	if raw == nil {
		var err error
		if raw, err = json.Marshal(answer); err != nil {
			return fmt.Errorf("encode the answer: %w", err)
		}
	}
	var out bytes.Buffer
	if err := json.Indent(&out, raw, "", "    "); err != nil {
		return fmt.Errorf("the answer is not JSON: %w", err)
	}
	_, err := fmt.Fprintln(c.env.Stdout, out.String())
	return err
}

func (c *command) printTemplate(text string, answer any) error {
	t, err := template.New("-t").Funcs(template.FuncMap{
		"json": func(v any) (string, error) { out, err := json.Marshal(v); return string(out), err },
		"join": func(sep string, list []string) string { return strings.Join(list, sep) },
	}).Parse(text)
	if err != nil {
		return &usageError{fmt.Sprintf("-t is not a template: %v", err)}
	}
	var out bytes.Buffer
	if err := t.Execute(&out, answer); err != nil {
		return fmt.Errorf("apply the template: %w%s", err, fieldsOf(answer))
	}
	_, err = fmt.Fprintln(c.env.Stdout, out.String())
	return err
}

// fieldsOf says what a template may name; nothing for what has no fields.
func fieldsOf(answer any) string {
	t := reflect.TypeOf(answer)
	item := ""
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		if t.Kind() == reflect.Slice {
			item = " of each item, in {{range .}}…{{end}},"
		}
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return ""
	}
	var names []string
	for i := range t.NumField() {
		if f := t.Field(i); f.IsExported() {
			names = append(names, f.Name)
		}
	}
	return "\nThe fields" + item + " are " + strings.Join(names, ", ")
}

func (c *command) printf(format string, args ...any) error {
	_, err := io.WriteString(c.env.Stdout, printable(fmt.Sprintf(format, args...)))
	return err
}

// printable takes out what a terminal would obey: names and reasons come from tools, jobs and the bundles of strangers.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return -1
		}
		return r
	}, text)
}

// tell writes a message to the user, beside the data.
func (c *command) tell(format string, args ...any) {
	fmt.Fprint(c.env.Stderr, printable(fmt.Sprintf(format+"\n", args...)))
}

// table is rows of text in columns, the first row being the heads.
type table [][]string

func (t *table) row(cells ...string) { *t = append(*t, cells) }

func (t table) String() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range t {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	w.Flush() // writes to a strings.Builder, which does not fail
	lines := strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n") + "\n"
}

// facts prints names and values, one line each, with the equals signs in one column.
func facts(pairs ...string) string {
	width := 0
	for i := 0; i < len(pairs); i += 2 {
		width = max(width, utf8.RuneCountInString(pairs[i]))
	}
	var b strings.Builder
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			fmt.Fprintf(&b, "%-*s = %s\n", width, pairs[i], pairs[i+1])
		}
	}
	return b.String()
}

func section(title string) string { return "\n" + title + "\n" }

// moment prints a time for people; the empty text when it is not known.
func moment(t *time.Time) string {
	if t == nil || t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// text gives what a pointer points to, and the empty text for nil.
func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// dash stands for what is not known.
func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
