package nomadplugin

import (
	"strconv"
	"strings"

	"github.com/heteroflow/heteroflow/internal/nomadplugin/hclspec"
)

// Fields are the named options of an Object. An option whose spec has no name of its own takes its key as name.
type Fields map[string]*hclspec.Spec

// Object is a set of named options: the root of a schema, and the body of a nested block.
func Object(f Fields) *hclspec.Spec {
	if f == nil {
		f = Fields{}
	}
	return &hclspec.Spec{Block: &hclspec.Spec_Object{Object: &hclspec.Object{Attributes: f}}}
}

// Attr is one option of an HCL type, such as "string" or "list(string)". Unset it decodes to nil.
func Attr(name, typ string, required bool) *hclspec.Spec {
	return &hclspec.Spec{Block: &hclspec.Spec_Attr{Attr: &hclspec.Attr{Name: name, Type: typ, Required: required}}}
}

// Default gives an option a fallback, written as an HCL expression: a string needs its quotes inside. The name
// inside attr must be given, it is not taken from the Object.
func Default(attr *hclspec.Spec, literal string) *hclspec.Spec {
	return &hclspec.Spec{Block: &hclspec.Spec_Default{Default: &hclspec.Default{
		Primary: attr,
		Default: &hclspec.Spec{Block: &hclspec.Spec_Literal{Literal: &hclspec.Literal{Value: literal}}},
	}}}
}

// OptString is an option of text with a fallback.
func OptString(name, fallback string) *hclspec.Spec {
	return Default(Attr(name, "string", false), quote(fallback))
}

// OptBool is an option of true or false with a fallback.
func OptBool(name string, fallback bool) *hclspec.Spec {
	return Default(Attr(name, "bool", false), strconv.FormatBool(fallback))
}

// OptNumber is an option of a whole number with a fallback.
func OptNumber(name string, fallback int64) *hclspec.Spec {
	return Default(Attr(name, "number", false), strconv.FormatInt(fallback, 10))
}

// Block is a nested block that may come once. Absent it decodes to nil.
func Block(name string, required bool, nested *hclspec.Spec) *hclspec.Spec {
	return &hclspec.Spec{Block: &hclspec.Spec_BlockValue{BlockValue: &hclspec.Block{Name: name, Required: required, Nested: nested}}}
}

// BlockAttrs is a block with free keys and values of one type, such as labels. Absent it decodes to nil.
func BlockAttrs(name, elemType string) *hclspec.Spec {
	return &hclspec.Spec{Block: &hclspec.Spec_BlockAttrs{BlockAttrs: &hclspec.BlockAttrs{Name: name, Type: elemType}}}
}

// BlockList is a block that may be repeated. Absent it decodes to an empty list.
func BlockList(name string, nested *hclspec.Spec) *hclspec.Spec {
	return &hclspec.Spec{Block: &hclspec.Spec_BlockList{BlockList: &hclspec.BlockList{Name: name, Nested: nested}}}
}

// BlockMap is a block that may be repeated, each with the given labels.
func BlockMap(name string, labels []string, nested *hclspec.Spec) *hclspec.Spec {
	return &hclspec.Spec{Block: &hclspec.Spec_BlockMap{BlockMap: &hclspec.BlockMap{Name: name, Labels: labels, Nested: nested}}}
}

// quote writes text as an HCL string without any interpolation.
func quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for i, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case (r == '$' || r == '%') && strings.HasPrefix(s[i+1:], "{"):
			b.WriteRune(r)
			b.WriteRune(r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}
