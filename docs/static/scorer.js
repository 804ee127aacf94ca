/* Order of the results of a search: guides first, then what is looked up. The other numbers are those of Sphinx. */
var Scorer = {
  score: ([page, title, anchor, description, score]) =>
    /^(reference|development|changelog|architecture|format|examples|notebook|gallery)/.test(page) ? score - 5 : score,
  objNameMatch: 11,
  objPartialMatch: 3,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
