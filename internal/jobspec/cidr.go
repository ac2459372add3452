package jobspec

import (
	"errors"
	"fmt"
	"math/big"
	"net/netip"

	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
	"github.com/zclconf/go-cty/cty/gocty"
)

func cidrFunction(result cty.Type, params []function.Parameter, more *function.Parameter, f func(netip.Prefix, []cty.Value) (cty.Value, error)) function.Function {
	return function.New(&function.Spec{
		Params:   append([]function.Parameter{{Name: "prefix", Type: cty.String}}, params...),
		VarParam: more,
		Type:     function.StaticReturnType(result),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			prefix, err := netip.ParsePrefix(args[0].AsString())
			if err != nil {
				return cty.NilVal, function.NewArgErrorf(0, "%q is not a network: write it as 10.0.0.0/8", args[0].AsString())
			}
			return f(prefix.Masked(), args[1:])
		},
	})
}

// cidrHost is the n-th address of a network, counted from its end when n is negative.
var cidrHost = cidrFunction(cty.String, []function.Parameter{{Name: "hostnum", Type: cty.Number}}, nil,
	func(prefix netip.Prefix, args []cty.Value) (cty.Value, error) {
		number, accuracy := args[0].AsBigFloat().Int(nil)
		if accuracy != big.Exact {
			return cty.NilVal, errors.New("the host number is not whole")
		}
		size := new(big.Int).Lsh(big.NewInt(1), uint(prefix.Addr().BitLen()-prefix.Bits()))
		if number.Sign() < 0 {
			number.Add(number, size)
		}
		if number.Sign() < 0 || number.Cmp(size) >= 0 {
			return cty.NilVal, fmt.Errorf("%s has no host number %s", prefix, args[0].AsBigFloat().String())
		}
		address, err := offset(prefix.Addr(), number)
		return cty.StringVal(address.String()), err
	})

var cidrNetmask = cidrFunction(cty.String, nil, nil, func(prefix netip.Prefix, _ []cty.Value) (cty.Value, error) {
	if !prefix.Addr().Is4() {
		return cty.NilVal, errors.New("only IPv4 networks have a netmask")
	}
	ones, _ := netip.AddrFrom4([4]byte{255, 255, 255, 255}).Prefix(prefix.Bits()) // bits are in range, they were parsed
	return cty.StringVal(ones.Addr().String()), nil
})

// cidrSubnet is the n-th network with newbits more bits inside a network.
var cidrSubnet = cidrFunction(cty.String,
	[]function.Parameter{{Name: "newbits", Type: cty.Number}, {Name: "netnum", Type: cty.Number}}, nil,
	func(prefix netip.Prefix, args []cty.Value) (cty.Value, error) {
		bits, err := subnetBits(prefix, args[0])
		if err != nil {
			return cty.NilVal, err
		}
		number, accuracy := args[1].AsBigFloat().Int(nil)
		if accuracy != big.Exact || number.Sign() < 0 || number.BitLen() > bits-prefix.Bits() {
			return cty.NilVal, fmt.Errorf("%s has no network number %s with %d bits", prefix, args[1].AsBigFloat().String(), bits)
		}
		address, err := offset(prefix.Addr(), number.Lsh(number, uint(prefix.Addr().BitLen()-bits)))
		return cty.StringVal(netip.PrefixFrom(address, bits).String()), err
	})

// cidrSubnets lays networks of the given extra bits one after another into a network.
var cidrSubnets = cidrFunction(cty.List(cty.String), nil, &function.Parameter{Name: "newbits", Type: cty.Number},
	func(prefix netip.Prefix, args []cty.Value) (cty.Value, error) {
		var out []cty.Value
		next := new(big.Int) // offset of the first free address
		for _, arg := range args {
			bits, err := subnetBits(prefix, arg)
			if err != nil {
				return cty.NilVal, err
			}
			size := new(big.Int).Lsh(big.NewInt(1), uint(prefix.Addr().BitLen()-bits))
			next.Add(next, size).Sub(next, big.NewInt(1)).Div(next, size).Mul(next, size) // round up to the size
			address, err := offset(prefix.Addr(), next)
			if err != nil || !prefix.Contains(address) {
				return cty.NilVal, fmt.Errorf("%s has no room for all these networks", prefix)
			}
			out = append(out, cty.StringVal(netip.PrefixFrom(address, bits).String()))
			next.Add(next, size)
		}
		if len(out) == 0 {
			return cty.ListValEmpty(cty.String), nil
		}
		return cty.ListVal(out), nil
	})

func subnetBits(prefix netip.Prefix, extra cty.Value) (int, error) {
	var more int
	if err := gocty.FromCtyValue(extra, &more); err != nil {
		return 0, err
	}
	bits := prefix.Bits() + more
	if more < 0 || bits > prefix.Addr().BitLen() {
		return 0, fmt.Errorf("%s cannot be cut into networks with %d more bits", prefix, more)
	}
	return bits, nil
}

// offset is the address n after a.
func offset(a netip.Addr, n *big.Int) (netip.Addr, error) {
	sum := new(big.Int).Add(new(big.Int).SetBytes(a.AsSlice()), n)
	raw := make([]byte, a.BitLen()/8)
	if sum.BitLen() > a.BitLen() {
		return netip.Addr{}, errors.New("the address is outside the address space")
	}
	out, _ := netip.AddrFromSlice(sum.FillBytes(raw)) // raw has 4 or 16 bytes
	return out, nil
}
