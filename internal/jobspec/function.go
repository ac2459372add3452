package jobspec

import (
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/url"
	"path"
	"strings"

	"github.com/google/uuid"
	"github.com/hashicorp/hcl/v2/ext/tryfunc"
	"github.com/hashicorp/hcl/v2/ext/typeexpr"
	ctyyaml "github.com/zclconf/go-cty-yaml"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
	"github.com/zclconf/go-cty/cty/function/stdlib"
	"golang.org/x/crypto/bcrypt"
)

// functions are the functions that a job file may call, by Nomad's names. Those that read files are there only
// when files is set.
func functions(files bool) map[string]function.Function {
	table := map[string]function.Function{
		"abs": stdlib.AbsoluteFunc, "ceil": stdlib.CeilFunc, "floor": stdlib.FloorFunc, "log": stdlib.LogFunc,
		"max": stdlib.MaxFunc, "min": stdlib.MinFunc, "parseint": stdlib.ParseIntFunc, "pow": stdlib.PowFunc, "signum": stdlib.SignumFunc,

		"chomp": stdlib.ChompFunc, "format": stdlib.FormatFunc, "formatlist": stdlib.FormatListFunc, "indent": stdlib.IndentFunc,
		"join": stdlib.JoinFunc, "lower": stdlib.LowerFunc, "upper": stdlib.UpperFunc, "title": stdlib.TitleFunc,
		"regex_replace": stdlib.RegexReplaceFunc, "replace": stdlib.ReplaceFunc, "reverse": stdlib.ReverseFunc, "strrev": stdlib.ReverseFunc,
		"split": stdlib.SplitFunc, "strlen": stdlib.StrlenFunc, "substr": stdlib.SubstrFunc, "trim": stdlib.TrimFunc,
		"trimprefix": stdlib.TrimPrefixFunc, "trimspace": stdlib.TrimSpaceFunc, "trimsuffix": stdlib.TrimSuffixFunc,

		"chunklist": stdlib.ChunklistFunc, "coalesce": stdlib.CoalesceFunc, "coalescelist": stdlib.CoalesceListFunc, "compact": stdlib.CompactFunc,
		"concat": stdlib.ConcatFunc, "contains": stdlib.ContainsFunc, "distinct": stdlib.DistinctFunc, "element": stdlib.ElementFunc,
		"flatten": stdlib.FlattenFunc, "index": stdlib.IndexFunc, "keys": stdlib.KeysFunc, "length": stdlib.LengthFunc,
		"lookup": stdlib.LookupFunc, "merge": stdlib.MergeFunc, "range": stdlib.RangeFunc, "setintersection": stdlib.SetIntersectionFunc,
		"setproduct": stdlib.SetProductFunc, "setunion": stdlib.SetUnionFunc, "slice": stdlib.SliceFunc, "sort": stdlib.SortFunc,
		"values": stdlib.ValuesFunc, "zipmap": stdlib.ZipmapFunc,

		"csvdecode": stdlib.CSVDecodeFunc, "jsondecode": stdlib.JSONDecodeFunc, "jsonencode": stdlib.JSONEncodeFunc,
		"yamldecode": ctyyaml.YAMLDecodeFunc, "yamlencode": ctyyaml.YAMLEncodeFunc,
		"formatdate": stdlib.FormatDateFunc, "timeadd": stdlib.TimeAddFunc,

		"can": tryfunc.CanFunc, "try": tryfunc.TryFunc, "convert": typeexpr.ConvertFunc,

		"base64encode": textFunction(func(s string) (string, error) { return base64.StdEncoding.EncodeToString([]byte(s)), nil }),
		"base64decode": textFunction(base64decode),
		"urlencode":    textFunction(func(s string) (string, error) { return url.QueryEscape(s), nil }),
		"md5":          textFunction(func(s string) (string, error) { sum := md5.Sum([]byte(s)); return hex.EncodeToString(sum[:]), nil }),
		"sha1":         textFunction(func(s string) (string, error) { sum := sha1.Sum([]byte(s)); return hex.EncodeToString(sum[:]), nil }),
		"sha256": textFunction(func(s string) (string, error) {
			sum := sha256.Sum256([]byte(s))
			return hex.EncodeToString(sum[:]), nil
		}),
		"sha512": textFunction(func(s string) (string, error) {
			sum := sha512.Sum512([]byte(s))
			return hex.EncodeToString(sum[:]), nil
		}),
		"bcrypt":   textFunction(bcryptHash),
		"basename": textFunction(func(s string) (string, error) { return path.Base(s), nil }),
		"dirname":  textFunction(func(s string) (string, error) { return path.Dir(s), nil }),

		"uuidv4": uuidv4, "uuidv5": uuidv5,
		"cidrhost": cidrHost, "cidrnetmask": cidrNetmask, "cidrsubnet": cidrSubnet, "cidrsubnets": cidrSubnets,
	}
	for name, f := range fileFunctions(files) {
		table[name] = f
	}
	return table
}

// textFunction makes a function of one text with a text as result.
func textFunction(f func(string) (string, error)) function.Function {
	return function.New(&function.Spec{
		Params: []function.Parameter{{Name: "text", Type: cty.String}},
		Type:   function.StaticReturnType(cty.String),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			out, err := f(args[0].AsString())
			return cty.StringVal(out), err
		},
	})
}

func base64decode(s string) (string, error) {
	out, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		return "", fmt.Errorf("decode base64: %w", err)
	}
	return string(out), nil
}

func bcryptHash(s string) (string, error) {
	out, err := bcrypt.GenerateFromPassword([]byte(s), bcrypt.DefaultCost)
	return string(out), err
}

var uuidv4 = function.New(&function.Spec{
	Type: function.StaticReturnType(cty.String),
	Impl: func([]cty.Value, cty.Type) (cty.Value, error) {
		id, err := uuid.NewRandom()
		return cty.StringVal(id.String()), err
	},
})

// uuidv5 names a thing inside a name space: dns, url, oid, x500 or a UUID.
var uuidv5 = function.New(&function.Spec{
	Params: []function.Parameter{{Name: "namespace", Type: cty.String}, {Name: "name", Type: cty.String}},
	Type:   function.StaticReturnType(cty.String),
	Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
		space, known := map[string]uuid.UUID{
			"dns": uuid.NameSpaceDNS, "url": uuid.NameSpaceURL, "oid": uuid.NameSpaceOID, "x500": uuid.NameSpaceX500,
		}[strings.ToLower(args[0].AsString())]
		if !known {
			var err error
			if space, err = uuid.Parse(args[0].AsString()); err != nil {
				return cty.NilVal, function.NewArgErrorf(0, "write dns, url, oid, x500 or a UUID")
			}
		}
		return cty.StringVal(uuid.NewSHA1(space, []byte(args[1].AsString())).String()), nil
	},
})
