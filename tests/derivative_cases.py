"""Small ops, one for each thing that differentiation has to get right, and a call of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from derivatives import AttributeValue, Call, make_call, read_op


@dataclass(frozen=True)
class Case:
    """A spec with sizes and attributes, and values of its integer inputs."""

    name: str
    text: str
    given: Mapping[str, AttributeValue]
    integers: Mapping[str, object] = field(default_factory=dict)

    def __repr__(self) -> str:
        return self.name

    def call(self, *, exact: bool = False) -> Call:
        """A call with random numbers."""
        return make_call(read_op(self.text), self.given, self.integers, exact=exact)


CASES = (
    Case(
        "strided window",
        """op f(x[N,C,H], w[O,C,K]; s=1, p=0) -> y[N,O,V]
             where s >= 1, p >= 0
             let V = (H + 2*p - K)//s + 1
             y[n,o,i] = sum(c,k) x[n,c, i*s - p + k ?0] * w[o,c,k]""",
        {"N": 1, "C": 2, "H": 5, "O": 2, "K": 3, "s": 2, "p": 1},
    ),
    # ------------------------------------------------------------ reads that others cover
    Case(
        "factor keeps another in range",
        """op f(x[N], m[N]; K=3) -> y[N]
             where K >= 0
             y[i] = sum(k in K) x[i + k - 1 ?0] * m[i + k - 1]""",
        {"N": 4},
    ),
    Case(
        "factor keeps a function in range",
        """op f(x[N], m[N]; K=3) -> y[N]
             where K >= 0
             y[i] = sum(k in K) x[i + k - 1 ?0] * exp(m[i + k - 1])""",
        {"N": 3},
    ),
    Case(
        "product inside of a function",
        """op f(x[N], m[N]; K=3) -> y[N]
             where K >= 0
             y[i] = sum(k in K) exp(x[i + k - 1 ?0] * m[i + k - 1])""",
        {"N": 3},
    ),
    Case(
        "factor keeps a condition in range",
        """op f(x[N], m[N], q[N]; K=3) -> y[N]
             where K >= 0
             y[i] = sum(k in K) m[i + k - 1 ?0]
                  * select(q[i + k - 1] > 0, x[i + k - 1], 2*q[i + k - 1])""",
        {"N": 4},
    ),
    Case(
        "three factors",
        """op f(x[N], z[N], w[N]; K=3) -> y[N]
             where K >= 0
             y[i] = sum(k in K) x[i + k - 1 ?0] * z[i] * w[i + k - 1]""",
        {"N": 3},
    ),
    Case(
        "temporary written in part",
        """op f(x[N], v[N]; K=3) -> y[N]
             where K >= 0
             p[i,k] = exp(x[i]*x[i + k - 1])  for k in K  if 0 <= i + k - 1 < N
             y[i] = sum(k in K) p[i,k] * v[i + k - 1 ?0]""",
        {"N": 4},
    ),
    Case(
        "absent term of a sum",
        """op f(x[N], c[N], z[N]; K=3) -> y[N]
             where K >= 0
             y[i] = sum(k in K) (x[i + k - 1 ?0] + c[i])*z[i]""",
        {"N": 3},
    ),
    # ------------------------------------------------------------ select
    Case(
        "select by index",
        """op f(x[N]; K=3) -> y[N]
             where K >= 0
             y[i] = sum(k in K) select(i + k < N, x[i + k]*x[i + k], 0)""",
        {"N": 4},
    ),
    Case(
        "select by index and value",
        """op f(x[N], w[N]; K=3) -> y[N]
             where K >= 0
             y[i] = sum(k in K) select(i + k < N and x[i] > 0, x[i + k]*w[i], x[i]*w[i]*w[i])""",
        {"N": 4},
    ),
    Case(
        "select by two alternatives",
        """op f(x[N,M]) -> y[N]
             y[i] = sum(k) select(not (i >= k or k == 2), x[i,k]**2, 3*x[i,k])""",
        {"N": 3, "M": 4},
    ),
    # ------------------------------------------------------------ max, min, prod
    Case("max", "op f(x[N,K]) -> y[N]\n y[i] = max(k) x[i,k]*x[i,k]", {"N": 3, "K": 4}),
    Case(
        "max over padding",
        """op f(x[N]; K=3) -> y[N]
             where K >= 0
             y[i] = max(k in K) x[i + 2*k - 2 ?0]""",
        {"N": 6},
    ),
    Case(
        "max over a filled border",
        """op f(x[N]; K=3) -> y[N]
             where K >= 1, N >= 1
             y[i] = max(k in K) x[i + k - 1 ?(-inf)]""",
        {"N": 4},
    ),
    Case(
        "min with empty windows",
        "op f(x[N,K]) -> y[N]\n z[i] = min(k if k < i) x[i,k]**2\n y[i] = exp(-z[i])",
        {"N": 3, "K": 4},
    ),
    Case(
        "max of several statements",
        """op f(x[N,K], z[N]) -> y[N]
             y[i] max= x[i,k]  for k
             y[i] max= z[i]*z[i]
             y[i] max= 0.5*x[i,0]""",
        {"N": 4, "K": 2},
    ),
    Case(
        "max into cells many points share",
        """op f(x[N], w[K]) -> y[V]
             let V = N + K - 1
             y[i + k] max= x[i]*w[k]""",
        {"N": 3, "K": 3},
    ),
    Case(
        "max into cells that a border shares",
        """op f(x[N,K]) -> y[M]
             let M = N - 1
             where N >= 2, K <= 2
             y[i + k - 1 ?symmetric] max= x[i,k]*x[i,k]""",
        {"N": 3, "K": 2},
    ),
    Case(
        "max with a batch",
        "op f(x[...,N]) -> y[...,M]\n let M = N + 1\n y[..., i + 1] max= x[...,i]*x[...,i]",
        {"...": 2, "N": 2},
    ),
    Case("prod", "op f(x[N,K], w[K]) -> y[N]\n y[i] = prod(k) x[i,k]*w[k]", {"N": 2, "K": 3}),
    Case(
        "prod under a condition",
        "op f(x[N,K]) -> y[N]\n y[i] = prod(k in K, j in 2 if k + j <= 2) (x[i,k] + j)",
        {"N": 2, "K": 3},
    ),
    Case(
        "prod over a batch",
        "op f(x[...,K]) -> y[...]\n y[...] = prod(k) x[...,k]",
        {"...": 2, "K": 3},
    ),
    # ------------------------------------------------------------ boundary modes
    Case(
        "clamp",
        """op f(x[N]; K=4) -> y[N]
             where N >= 1, K >= 0
             y[i] = sum(k in K) x[i + k - 2 ?clamp]*x[i ?clamp]""",
        {"N": 3},
    ),
    Case(
        "reflect and symmetric",
        """op f(x[N]) -> y[N]
             where N >= 3
             y[i] = sum(k in 3) x[i + k - 1 ?reflect]*x[i + k - 1 ?symmetric]""",
        {"N": 4},
    ),
    Case(
        "wrap",
        """op f(x[N]; S=2) -> y[N]
             where N >= 1
             y[i] = x[i + S ?wrap]*x[i - S ?wrap]  for i in N""",
        {"N": 3},
    ),
    Case(
        "drop",
        "op f(x[N], w[K]) -> y[N]\n y[i + k - 1 ?drop] += x[i]*w[k]*w[k]",
        {"N": 4, "K": 3},
    ),
    Case(
        "fill",
        """op f(x[N]; K=3) -> y[N]
             where K >= 0
             y[i] = sum(k in K) exp(x[i + k - 1 ?(0.5)])""",
        {"N": 3},
    ),
    Case(
        "clamped write",
        "op f(x[N]) -> y[N]\n where N >= 1\n y[2*i - 1 ?clamp] += x[i]*x[i]",
        {"N": 4},
    ),
    # ------------------------------------------------------------ statements
    Case(
        "output read by another",
        """op f(x[N]) -> y[N], z[N], idx: i64[]
             y[i] = exp(x[i])
             z[i] = y[i]*x[i]
             idx[] = argmax(i) x[i]""",
        {"N": 3},
    ),
    Case(
        "softmax",
        """op f(x[N,D]) -> y[N,D]
             peak[n] = max(d) x[n,d]
             p[n,d] = exp(x[n,d] - peak[n])
             y[n,d] = p[n,d] / (sum(k) p[n,k])""",
        {"N": 2, "D": 3},
    ),
    Case(
        "concatenation of a constant",
        """op f(x[N]) -> y[N]
             let M = N + 1
             tmp t[M]
             t[i] = x[i]*x[i]
             t[N] = 1
             y[i] = t[i]*t[i + 1]  for i in N""",
        {"N": 3},
    ),
    Case(
        "mean under a condition",
        "op f(x[N,K]) -> y[N]\n y[i] = mean(k if k <= i) x[i,k]**2",
        {"N": 2, "K": 3},
    ),
    Case(
        "batch",
        "op f(x[...,C], w[O,C]) -> y[...,O]\n y[...,o] = sum(c) x[...,c]*w[o,c]*w[o,c]",
        {"...": 2, "C": 3, "O": 2},
    ),
    # ------------------------------------------------------------ accesses
    Case(
        "data-dependent index",
        "op f(t[V,E], id: int[N]) -> y[N,E]\n y[n,e] = t[id[n], e]*t[id[n] ?clamp, e]",
        {"V": 3, "E": 2, "N": 4},
        {"id": [0, 2, 2, 1]},
    ),
    Case(
        "integers filled with a real",
        """op f(x[N], id: int[N]) -> y[N]
             t[i] = id[i + 1 ?(0.5)]  for i in N
             y[i] = max(k in 2) id[i + k ?(-inf)]*t[i]*x[i]*x[i]""",
        {"N": 3},
        {"id": [2, 1, 3]},
    ),
    Case("diagonal", "op f(x[N,N]) -> y[N]\n y[i] = x[i,i]*x[0,i]", {"N": 3}),
    Case(
        "composite",
        """op f(x[(C r r),H]; r=2) -> y[C,(H r)]
             where r >= 1
             y[c,(h i)] = sum(j) x[(c i j),h]*x[(c j i),h]""",
        {"C": 1, "H": 2},
    ),
    Case(
        "table",
        """op f(x: float[N]) -> y[N]
             const c = [1, 2, 1]
             y[i] = sum(k) 0.25*c[k]*x[i + k - 1 ?0]*x[i]""",
        {"N": 4},
    ),
    # ------------------------------------------------------------ values
    Case("same read twice", "op f(x[N]) -> y[N]\n y[i] = x[i]*x[i]*x[i] - x[i]*x[i]", {"N": 3}),
    Case(
        "parameter",
        "op f(x[N]; eps = 1e-3, n = 3) -> y[N]\n y[i] = n*x[i]/sqrt(x[i]*x[i] + eps)",
        {"N": 4},
    ),
    Case("optional input", "op f(x[N], b[N] = 1) -> y[N]\n y[i] = x[i]*b[i]", {"N": 4}),
    Case(
        "piecewise",
        """op f(x[N], z[N]) -> y[N]
             y[i] = max(x[i], z[i]) + min(x[i], 1)*abs(z[i]) + relu(x[i]) + floor(x[i])""",
        {"N": 6},
    ),
    Case(
        "powers",
        """op f(x[N], z[N]) -> y[N]
             y[i] = x[i]**2 + (x[i]*x[i] + 1)**z[i] + (x[i]*x[i] + 2)**(-1)""",
        {"N": 4},
    ),
    Case(
        "functions",
        "op f(x[N]) -> y[N]\n y[i] = sin(x[i])*tanh(x[i]) + log1p(x[i]**2)",
        {"N": 3},
    ),
    Case(
        "more functions",
        "op f(x[N], z[N]) -> y[N]\n y[i] = gelu(x[i])/(2 + cos(z[i])) - softplus(x[i])*silu(z[i])",
        {"N": 3},
    ),
)  # fmt: skip

BY_NAME = {case.name: case for case in CASES}
