variable "list" {
  type    = list(string)
  default = ["x", "y"]
}
variable "obj" {
  type = object({ name = string, deep = map(number) })
  default = {
    name = "o"
    deep = { a = 1 }
  }
}
variable "n" {
  default = 4
}
variables {
  short = "s"
}
locals {
  late = "${local.early}-${var.short}"
  early = upper("e")
}
locals {
  obj = { a = { b = [1, local.late] } }
}
job "functions" {
  group "g" {
    task "t" {
      driver = "d"
      config {
        v000 = abs(-1)
        v001 = base64encode("a")
        v002 = base64decode("YQ==")
        v003 = basename("a/b")
        v004 = dirname("a/b")
        v005 = can(1)
        v006 = try(nope.x, 1)
        v007 = ceil(1.2)
        v008 = chomp("a\n")
        v009 = chunklist(["a","b"],1)
        v010 = cidrhost("10.0.0.0/8",5)
        v011 = cidrhost("10.0.0.0/24",-1)
        v012 = cidrhost("fd00::/64",255)
        v013 = cidrnetmask("10.0.0.0/12")
        v014 = cidrsubnet("10.0.0.0/8",8,2)
        v015 = cidrsubnet("fd00::/48",16,162)
        v016 = cidrsubnets("10.0.0.0/8",8,2)
        v017 = cidrsubnets("10.1.0.0/16",4,4,8,4)
        v018 = coalesce("","b")
        v019 = coalescelist([],["a"])
        v020 = compact(["","a"])
        v021 = concat(["a"],["b"])
        v022 = convert("5",number)
        v023 = csvdecode("a\n1")
        v024 = distinct(["a","a"])
        v025 = element(["a"],3)
        v026 = formatdate("YYYY","2020-01-01T00:00:00Z")
        v027 = formatlist("%s-x",["a","b"])
        v028 = format("%s-%d","a",1)
        v029 = indent(2,"a\nb")
        v030 = index(["a","b"],1)
        v031 = keys({b=1,a=2})
        v032 = length([1])
        v033 = log(8,2)
        v034 = lookup({a=1},"b",2)
        v035 = md5("a")
        v036 = merge({a=1},{b=2})
        v037 = min(3,2)
        v038 = parseint("ff",16)
        v039 = pow(2,3)
        v040 = range(3)
        v041 = regex_replace("abc","a","b")
        v042 = replace("abc","a","b")
        v043 = reverse("ab")
        v044 = setintersection(["a"],["a"])
        v045 = setproduct(["a"],["b"])
        v046 = setunion(["a"],["b"])
        v047 = sha1("a")
        v048 = sha256("a")
        v049 = sha512("a")
        v050 = signum(-1)
        v051 = slice([1,2],0,1)
        v052 = sort(["b","a"])
        v053 = split(",","a,b")
        v054 = strlen("a")
        v055 = strrev("ab")
        v056 = substr("abc",0,1)
        v057 = timeadd("2020-01-01T00:00:00Z","1h")
        v058 = title("ab cd")
        v059 = trim("xax","x")
        v060 = trimprefix("ab","a")
        v061 = trimspace(" a ")
        v062 = trimsuffix("ab","b")
        v063 = urlencode("a b&c")
        v064 = uuidv5("dns","a.b")
        v065 = uuidv5("6ba7b811-9dad-11d1-80b4-00c04fd430c8","x")
        v066 = values({a=1})
        v067 = yamldecode("a: 1")
        v068 = yamlencode({a=1,b=["x"]})
        v069 = zipmap(["a"],["b"])
        v070 = file("testdata/oracle/words.txt")
        v071 = filebase64("testdata/oracle/words.txt")
        v072 = fileexists("./nothing")
        v073 = contains(["a"],"a")
        v074 = flatten([["a"],["b"]])
        v075 = floor(1.5)
        v076 = max(1,2)
        v077 = jsondecode("[1,{\"a\":null}]")
        v078 = lower("A")
        v079 = upper("a")
        v080 = join(",",["a","b"])
        v081 = [for x in ["a","b"] : "${x}-${NOMAD_X}"]
        v082 = {for k, v in {a=1} : k => v if v > 0}
        v083 = true ? "${attr.a}" : "no"
        v084 = "%{ for x in ["a"] }${x}/${NOMAD_Y}%{ endfor }"
        v085 = NOMAD_ALLOC_ID
        v086 = attr.unique.network.ip-address
        v087 = "${ NOMAD_SPACED }"
        v088 = "${env["HOME"]}${meta["a.b"]}${attr.a[0]}"
        v089 = "$${kept} %%{kept}"
        v090 = local.late
        v091 = local.obj.a.b[1]
        v092 = var.list[0]
        v093 = "${var.obj.name}-${var.n + 1}"
        v094 = var.list.*
        v095 = [1, 2.5, -3, 1e3, 12345678901234567890]
        v096 = "${NOMAD_X == "a" ? 1 : 2}"
        flush = <<-EOT
          one ${NOMAD_PORT_http}
            two ${local.late}
          {{ range service "x" }}{{ .Address }}{{ end }}
        EOT
      }
    }
  }
}
