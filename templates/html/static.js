/** A page without views: its tables as CSV. */

import { withSavers } from "./csv.js";

withSavers(document.querySelector("main"));
